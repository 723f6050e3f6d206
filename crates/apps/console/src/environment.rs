//! The machine and the build, which stand beside every figure.

use serde::Serialize;

/// The machine and the build.
#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    /// Model of the processor.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Memory of the machine in MiB.
    pub memory_mib: u64,
    /// Version of the kernel.
    pub kernel: String,
    /// The system's setting of huge pages.
    pub huge_pages: String,
    /// The first 12 digits of the commit that the program was built from.
    pub commit: String,
    /// Version of the program.
    pub version: String,
}

impl Environment {
    /// Reads it from the system; what the system does not tell is `unknown`.
    #[must_use]
    pub fn read() -> Self {
        let field = |file: &str, name: &str| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(name)).map(str::to_string);
            line.and_then(|line| Some(line.split_once(':')?.1.trim().to_string())).unwrap_or_else(|| "unknown".into())
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let kib: u64 = memory.split_whitespace().next().and_then(|digits| digits.parse().ok()).unwrap_or(0);
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".into());
        Self {
            cpu: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: kib / 1024,
            kernel: kernel.trim().to_string(),
            huge_pages: lockwork_memory::huge_page_setting().unwrap_or_else(|| "absent".into()),
            commit: env!("LOCKWORK_COMMIT").to_string(),
            version: env!("CARGO_PKG_VERSION").to_string(),
        }
    }
}
