//! The habits of this house that a compiler does not check. Every failure names file, line and what would be right.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The longest source file. It may only be lowered.
const MAX_LINES: usize = 560;
/// The longest module of hardware, one a file: its documented ports and wires alone fill many lines. It may only be
/// lowered.
const MAX_LINES_OF_A_MODULE: usize = 1_570;
/// The longest line of a source.
const MAX_COLUMNS: usize = 120;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().expect("the repository")
}

/// Tracked files, and new ones that are not ignored.
fn files(endings: &[&str]) -> Vec<String> {
    let list = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(list).current_dir(root()).output().expect("git is there");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).expect("file names are text");
    let wanted = |name: &&str| endings.iter().any(|ending| name.ends_with(ending)) && root().join(name).is_file();
    names.lines().filter(wanted).map(String::from).collect()
}

fn text(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Fails with all findings.
fn none(findings: Vec<String>) {
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

#[test]
fn there_are_files_to_look_at() {
    assert!(files(&[".rs"]).len() > 100);
    assert!(files(&[".md"]).len() > 5);
}

#[test]
fn sources_are_short_and_narrow() {
    let mut findings = Vec::new();
    for name in files(&[".rs", ".cl", ".sv"]) {
        let text = text(&name);
        let lines = text.lines().count();
        let most = if name.ends_with(".sv") { MAX_LINES_OF_A_MODULE } else { MAX_LINES };
        if lines > most {
            findings.push(format!("{name}: {lines} lines; split what is more than {most}"));
        }
        for (number, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            // Tables and texts cannot be broken.
            let whole = line.trim_start().starts_with("//! |") || line.contains('"') || line.contains("\\n");
            if columns > MAX_COLUMNS && !whole {
                findings.push(format!("{name}:{}: {columns} columns; break it before {MAX_COLUMNS}", number + 1));
            }
        }
    }
    none(findings);
}

#[test]
fn limits_are_called_max_and_min() {
    let mut findings = Vec::new();
    for name in files(&[".rs", ".py"]) {
        for (number, line) in text(&name).lines().enumerate() {
            let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let wrong = words.filter(|word| word.starts_with("MOST_") || word.starts_with("LEAST_"));
            // This very file has them in quotes.
            for word in wrong.filter(|word| word.len() > "LEAST_".len()) {
                findings.push(format!("{name}:{}: {word} is a limit; call it MAX_ or MIN_", number + 1));
            }
        }
    }
    none(findings);
}

/// Names of types that say nothing, and that types had before.
const VAGUE_TYPES: &[&str] = &[
    "Crowd",
    "Curious",
    "Extent",
    "Gate",
    "Got",
    "Here",
    "Meeting",
    "Moment",
    "Nowhere",
    "Parted",
    "Supply",
    "There",
    "Together",
    "Unappended",
    "What",
    "Who",
    "Wish",
];

/// Phrases that hide who does what. A sentence with one of them is better with a named actor and an active verb.
const RIDDLES: &[&str] =
    &["what there is", "who asks", "to be had", "had by", "what is lost", "knows of it", "is no business"];

#[test]
fn types_have_names_of_the_field() {
    let mut findings = Vec::new();
    for name in files(&[".rs"]) {
        for (number, line) in text(&name).lines().enumerate() {
            let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let Some(kind) = words.find(|word| ["struct", "enum", "trait", "type"].contains(word)) else { continue };
            let defined = words.next().unwrap_or_default();
            // Words of a comment are no definition.
            if VAGUE_TYPES.contains(&defined) && !line.trim_start().starts_with("//") {
                findings.push(format!("{name}:{}: {kind} {defined}: say what it is", number + 1));
            }
        }
    }
    none(findings);
}

#[test]
fn comments_name_who_does_what() {
    let mut findings = Vec::new();
    for name in files(&[".rs"]) {
        for (number, line) in text(&name).lines().enumerate() {
            let Some((_, comment)) = line.split_once("//") else { continue };
            let padded = format!(" {comment} ").replace([',', '.', ';', ':', '?', ')'], " ");
            for riddle in RIDDLES.iter().filter(|riddle| padded.contains(&format!(" {riddle} "))) {
                findings.push(format!("{name}:{}: '{riddle}': name the actor, with an active verb", number + 1));
            }
        }
    }
    none(findings);
}

#[test]
fn texts_end_in_one_newline_and_lines_in_no_space() {
    let mut findings = Vec::new();
    for name in files(&[".rs", ".md", ".toml", ".lw", ".lock", ".sv", "Makefile"]) {
        let text = text(&name);
        for (number, line) in text.lines().enumerate().filter(|(_, line)| line.ends_with([' ', '\t'])) {
            findings.push(format!("{name}:{}: white space at the end: '{}'", number + 1, line.trim()));
        }
        if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
            findings.push(format!("{name}: end the file with one newline"));
        }
    }
    none(findings);
}

#[test]
fn nothing_is_left_for_later() {
    let words = [
        "TO".to_string() + "DO",
        "FIX".to_string() + "ME",
        "todo".to_string() + "!(",
        "unimplemented".to_string() + "!(",
        "dbg".to_string() + "!(",
    ];
    let mut findings = Vec::new();
    for name in files(&[".rs", ".md", ".toml", ".sv", "Makefile"]) {
        for (number, line) in text(&name).lines().enumerate() {
            for word in words.iter().filter(|word| line.contains(*word)) {
                findings.push(format!("{name}:{}: {word}: do it, or open an issue", number + 1));
            }
        }
    }
    none(findings);
}

#[test]
fn every_module_says_what_it_is() {
    let sources = files(&[".rs"]).into_iter().filter(|name| name.contains("/src/") || name.contains("/examples/"));
    let silent = sources.filter(|name| !text(name).starts_with("//!"));
    none(silent.map(|name| format!("{name}:1: begin with '//!' and what the module is for")).collect());
}

#[test]
fn every_local_link_leads_somewhere() {
    let mut findings = Vec::new();
    for name in files(&[".md"]) {
        let folder = root().join(&name).parent().expect("a file lies in a folder").to_path_buf();
        for (number, line) in text(&name).lines().enumerate() {
            for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let path = link.split('#').next().unwrap_or_default();
                if !path.is_empty() && !path.contains("://") && !folder.join(path).exists() {
                    findings.push(format!("{name}:{}: '{link}' does not exist", number + 1));
                }
            }
        }
    }
    none(findings);
}
