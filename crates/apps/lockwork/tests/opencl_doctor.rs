//! What `lockwork doctor` says about OpenCL devices. Needs one (`make verify` installs PoCL).

#[path = "common/command.rs"]
mod command;

use command::run;

#[test]
fn doctor_lists_devices() {
    let output = run("doctor");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("device=0: ") && text.contains("compute units"), "{text}");
}

#[test]
fn doctor_says_how_to_get_a_platform() {
    // Platforms are looked for where there are none.
    let output = run("OCL_ICD_VENDORS=/nonexistent doctor");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("apt install pocl-opencl-icd"), "{text}");
}
