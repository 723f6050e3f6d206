//! `lockwork doctor`: what works here.

use lockwork_engine::EngineKind;
use lockwork_memory::{Buffer, HUGE_PAGE, Pages, huge_bytes_resident, huge_page_setting};
use lockwork_opencl::DeviceKind;

use super::report::Environment;
use super::{Outcome, print};

pub(super) fn run() -> Outcome {
    let environment = Environment::read();
    let mut text = format!("lockwork {} (commit {})\n\n", env!("CARGO_PKG_VERSION"), environment.commit);
    let mut line = |what: &str, found: &str| text.push_str(&format!("  {what:<22} {found}\n"));
    line("processor", &environment.cpu);
    line("cores", &environment.cores.to_string());
    line("memory", &format!("{} MiB", environment.memory_mib));
    line("kernel", &environment.kernel);
    line("huge pages", &huge_pages());
    let names: Vec<&str> = EngineKind::CPU.iter().map(|kind| kind.name()).collect();
    line("CPU engines", &format!("ok: {}", names.join(", ")));
    for (number, found) in opencl().iter().enumerate() {
        line(if number == 0 { "OpenCL engines" } else { "" }, found);
    }
    line("FPGA processor", "not in this version");
    line("lock service", "not in this version");
    text.push_str("\nNext: lockwork demo\n");
    print(&text)
}

/// A line for each OpenCL device, or why there is none and how to get one.
fn opencl() -> Vec<String> {
    let devices = match lockwork_opencl::devices() {
        Ok(devices) => devices,
        Err(absent) => return vec![absent.to_string()],
    };
    let fallback = devices.iter().all(|device| device.kind == DeviceKind::Cpu);
    let mut lines = vec!["ok: opencl-deterministic, opencl-two-phase".to_string()];
    lines.extend(devices.iter().map(|device| {
        format!(
            "--device {}: {} '{}', {} compute units, {} MiB, {} MiB in one buffer; {}, {}",
            device.number,
            device.kind.name(),
            device.name,
            device.compute_units,
            device.memory_bytes >> 20,
            device.buffer_bytes >> 20,
            device.platform,
            device.version
        )
    }));
    if fallback {
        lines.push("the CPU is the fallback: a GPU's driver brings its own platform".into());
    }
    lines
}

/// Tries for a huge page and says what came of it.
fn huge_pages() -> String {
    let setting = huge_page_setting().unwrap_or_else(|| "absent".into());
    let Ok(buffer) = Buffer::zeroed(8 * HUGE_PAGE, Pages::Huge, "a trial of huge pages") else {
        return "no memory for a trial".into();
    };
    let before = huge_bytes_resident();
    for page in 0..8 {
        // SAFETY: the buffer is eight huge pages long.
        unsafe { buffer.as_ptr().add(page * HUGE_PAGE).write_volatile(1) };
    }
    match (before, huge_bytes_resident()) {
        (Some(before), Some(after)) if after > before => format!("ok: given on request (setting '{setting}')"),
        (Some(_), Some(_)) => format!(
            "not given (setting '{setting}'): random reads cost about 1.5 times as much. Enable them with \
             'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled' as root"
        ),
        _ => format!("unknown: the kernel does not tell (setting '{setting}')"),
    }
}
