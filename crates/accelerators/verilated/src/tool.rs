//! Where Verilator is.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the program, if it is neither in the path nor where `scripts/rtl-tools` puts it.
pub(crate) const VARIABLE: &str = "LOCKWORK_VERILATOR";

/// An installed Verilator: its program, and the root that its runtime is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verilator {
    pub(crate) program: PathBuf,
    pub(crate) root: PathBuf,
    /// What it says its version is.
    pub version: String,
}

/// What models are built with.
///
/// # Errors
/// What is missing, Verilator or a C++ compiler, and how to get it.
pub fn tools() -> Result<Verilator, String> {
    let verilator =
        Verilator::find().ok_or_else(|| format!("no Verilator: run scripts/rtl-tools, or name one by {VARIABLE}"))?;
    let compiler = Command::new("c++").arg("--version").output().is_ok_and(|output| output.status.success());
    if compiler { Ok(verilator) } else { Err("no C++ compiler: install one that is called c++ (Debian: g++)".into()) }
}

impl Verilator {
    /// The one that the environment variable `LOCKWORK_VERILATOR` names (a program, or a root with `bin` in it), else
    /// the one that `scripts/rtl-tools` installs in `target/rtl-tools` of this workspace, else the one in the path.
    #[must_use]
    pub fn find() -> Option<Self> {
        if let Some(named) = std::env::var_os(VARIABLE) {
            return Self::at(Path::new(&named));
        }
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/rtl-tools");
        Self::in_environment(&tools).or_else(|| {
            let path = std::env::var_os("PATH")?;
            std::env::split_paths(&path).find_map(|folder| {
                // A Python environment has a start script that finds the rest; a distribution has the program.
                folder.parent().and_then(Self::in_environment).or_else(|| Self::at(&folder.join("verilator_bin")))
            })
        })
    }

    /// In a Python environment that has the package `verilator`.
    fn in_environment(environment: &Path) -> Option<Self> {
        let mut libraries: Vec<_> = std::fs::read_dir(environment.join("lib")).ok()?.flatten().collect();
        libraries.sort_by_key(std::fs::DirEntry::path);
        libraries.iter().find_map(|library| Self::at(&library.path().join("site-packages/verilator")))
    }

    fn at(place: &Path) -> Option<Self> {
        let program = if place.is_dir() { place.join("bin/verilator_bin") } else { place.to_path_buf() };
        let mut roots = vec![program.parent()?.parent()?.to_path_buf()];
        roots.push(roots[0].join("share/verilator"));
        let root = roots.into_iter().find(|root| root.join("include/verilated.cpp").is_file())?;
        let answer = Command::new(&program).arg("--version").env("VERILATOR_ROOT", &root).output().ok()?;
        let version = String::from_utf8_lossy(&answer.stdout).trim().to_string();
        answer.status.success().then_some(Self { program, root, version })
    }
}
