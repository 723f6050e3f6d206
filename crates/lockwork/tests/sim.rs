//! `lockwork sim locks` as its users meet it.

#[path = "common/command.rs"]
mod command;

use command::run;

#[test]
fn a_seed_gives_a_run_again_with_the_command_that_is_printed() {
    let given = run("sim locks --seed 5 --operations 2000 --machines 3 --lean --writers-first --lost 50000");
    assert!(given.status.success(), "{}", String::from_utf8_lossy(&given.stderr));
    let text = String::from_utf8(given.stdout).expect("text");
    let command = text.lines().next().expect("a line").strip_prefix("lockwork ").expect("a command");
    assert_eq!(
        command,
        "sim locks --seed 5 --operations 2000 --machines 3 --tasks 6 --locks 12 --lean --writers-first --lost 50000"
    );
    assert_eq!(text.as_bytes(), run(command).stdout);
    assert!(text.ends_with("everybody was served.\n") && text.contains("         2,000  requests\n"), "{text}");
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    for wrong in ["--machines 0", "--machines 201", "--locks 0", "--lost 1000001", "--seed x"] {
        assert_eq!(run(&format!("sim locks {wrong}")).status.code(), Some(2), "{wrong}");
    }
}
