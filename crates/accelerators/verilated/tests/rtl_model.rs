//! A small module, built and driven.

use std::path::Path;

use lockwork_verilated::{Build, BuildError, Model};

fn counter(width: u32, trace: bool) -> Model {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rtl");
    Build::new("counter").sources(&sources).parameter("Width", width).trace(trace).load().expect("it builds")
}

#[test]
fn ports_of_every_width_are_reached_and_the_clock_counts() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    for width in [3, 8, 13, 31, 32, 40, 64] {
        let mut model = counter(width, false);
        let [reset, step, count] = ["rst_ni", "step_i", "count_o"].map(|name| model.port(name).unwrap());
        assert_eq!((step.bits, count.bits), (width, width));
        model.set(reset, 0);
        model.tick();
        model.set(reset, 1);
        let step_by = (1 << (width - 1)) - 1_u64;
        model.set(step, step_by);
        (0..5).for_each(|_| model.tick());
        assert_eq!(model.get(count), step_by.wrapping_mul(5) & (u64::MAX >> (64 - width)));
        assert_eq!(model.cycles(), 6);
    }
}

#[test]
fn parts_of_wide_ports_are_written_alone() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let mut model = counter(8, false);
    let [input, output] = ["wide_i", "wide_o"].map(|name| model.port(name).unwrap());
    model.set_bits(input, 0, 64, 0);
    model.set_bits(input, 64, 16, 0);
    model.set_bits(input, 27, 41, 0x155_1234_5678);
    model.eval();
    assert_eq!(!model.get_bits(output, 27, 41) & ((1 << 41) - 1), 0x155_1234_5678);
    assert_eq!((model.get_bits(output, 0, 27), model.get_bits(output, 68, 12)), ((1 << 27) - 1, 0xFFF));
    assert_eq!(model.get_bits(output, 80, 20), 0);
}

#[test]
fn a_failed_assertion_is_a_panic_that_says_where() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let mut model = counter(8, false);
    let [reset, step] = ["rst_ni", "step_i"].map(|name| model.port(name).unwrap());
    model.set(reset, 1);
    model.set(step, 13);
    let failure = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.tick())).unwrap_err();
    let failure = failure.downcast_ref::<String>().expect("a message");
    assert!(failure.contains("counter.sv"), "{failure}");
}

#[test]
fn a_waveform_has_the_signals() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let file = std::env::temp_dir().join(format!("lockwork-waveform-{}.vcd", std::process::id()));
    let mut model = counter(8, true);
    model.trace(&file).unwrap();
    let step = model.port("step_i").unwrap();
    model.set(step, 1);
    (0..4).for_each(|_| model.tick());
    drop(model);
    let waveform = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(waveform.contains("count_o") && waveform.contains("#7"), "{waveform}");
}

#[test]
fn a_waveform_that_is_not_taken_is_an_error() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let mut model = counter(8, true);
    let absent = model.trace(Path::new("/dev/null/absent.vcd")).unwrap_err();
    assert_eq!(absent.kind(), std::io::ErrorKind::NotADirectory, "{absent}");
    let mut model = counter(8, true);
    model.trace(Path::new("/dev/full")).unwrap();
    let step = model.port("step_i").unwrap();
    model.set(step, 1);
    (0..100_000).for_each(|_| model.tick());
    let full = model.flush_waveform().unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{full}");
    let unsupported = counter(8, false).trace(Path::new("/dev/null")).unwrap_err();
    assert_eq!(unsupported.kind(), std::io::ErrorKind::Unsupported, "{unsupported}");
}

#[test]
fn what_is_not_there_is_named() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let error = counter(8, false).port("cuont_o").unwrap_err().to_string();
    assert!(error.contains("'cuont_o'") && error.contains("count_o"), "{error}");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rtl");
    let error = Build::new("conuter").sources(&sources).load().unwrap_err();
    assert!(matches!(&error, BuildError::NoModule { module, .. } if module == "conuter"), "{error}");
}
