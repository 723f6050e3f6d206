//! `lockwork locks capacity` as its users meet it.

use crate::command::run;

fn stdout(line: &str) -> String {
    let output = run(line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_switch_of_the_paper_is_the_default() {
    let given = stdout("locks capacity --stages 12 --stage-kb 560 --control-stages 4");
    assert_eq!(given, stdout("locks capacity"));
    assert!(given.starts_with("12 stages of 560 KB hold 1 680 000 locks of 18 bits\n"), "{given}");
    let report: serde_json::Value = serde_json::from_str(&stdout("locks capacity --output json")).expect("JSON");
    assert_eq!(report["locks"], 1_680_000);
    assert_eq!(report["stages"]["machine"], 3);
    assert!(stdout("locks capacity --output csv").ends_with("\n12,560,4,1680000,2,3,3,0\n"));
}

#[test]
fn a_switch_too_small_is_refused_with_what_it_takes() {
    let output = run("locks capacity --stages 7");
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("it takes 8 at least"), "{message}");
    assert_eq!(run("locks capacity --stages 0").status.code(), Some(2));
    assert_eq!(run("locks capacity --stage-kb 99999999999").status.code(), Some(2));
}
