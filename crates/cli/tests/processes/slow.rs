//! Programs that take long until they call `kv_create`, and those that never do.

use std::process::Command;

use super::job::{End, KVSTORE, LIMIT, Process, Turn, worker};
use super::program::{PROGRAM, ROUNDS};

/// `kvstore run` with these options; rank 1 runs a script before it becomes a worker.
fn run(options: &[&str], before: &str) -> End {
    let worker = worker();
    let script = format!("if [ $KV_RANK = 1 ]; then {before}; fi; exec \"$@\"");
    let mut command = Command::new(KVSTORE);
    command.arg("run").args(options).args(["-n", "2", "--linger-ms", "100"]);
    command.args(["--", "sh", "-c", &script, "sh"]).arg(worker.get_program());
    command
        .args(worker.get_args())
        .env(PROGRAM, "closed forms")
        .env(ROUNDS, "2")
        .env("KV_THREADS", "1");
    Process::start("launcher", command).end(LIMIT)
}

#[test]
fn a_program_that_imports_for_long_is_named_and_waited_for() {
    let end = run(&[], "sleep 11; echo $KV_START_TIMEOUT_MS ms");
    let text = end.text();
    assert_eq!(end.status, Some(0), "{text}");
    let line = "kvstore run: after 10 s kv_create has not been called by worker 1";
    assert_eq!(end.lines.iter().filter(|it| it.text == line).count(), 1, "{text}");
    // Those that wait for it have as long.
    assert!(text.contains("1800000 ms"), "{text}");
}

#[test]
fn a_job_waits_as_long_as_its_user_says() {
    let end = run(&["--set", "start_timeout_ms=1500"], "sleep 50");
    let text = end.text();
    assert!(end.status.is_some_and(|status| status != 0), "{text}");
    assert!(text.contains("the job did not start within 1500 ms"), "{text}");
    assert!(text.contains("worker 1 did not come"), "{text}");
}

/// Long before the time limits of anybody.
#[test]
fn programs_that_end_without_a_store_are_named_and_their_servers_end() {
    let _turn = Turn::take();
    let mut command = Command::new(KVSTORE);
    command.args(["run", "-n", "2", "-s", "2", "--grace-ms", "600000", "--", "true"]);
    let end = Process::start("launcher", command).end(LIMIT);
    let text = end.text();
    assert_eq!(end.status, Some(0), "{text}");
    let line = "kvstore run: worker 0, worker 1 ended without having called kv_create: the servers are ended";
    assert!(text.contains(line), "{text}");
}

#[test]
fn a_job_that_waits_for_a_program_that_has_ended_fails_at_once() {
    let end = run(&[], "exit 0");
    let text = end.text();
    assert_eq!(end.status, Some(1), "{text}");
    let line = "kvstore run: worker 1 ended without having called kv_create: the job cannot start";
    assert!(text.contains(line), "{text}");
    let last = "kvstore run: failed because a worker ended without having called kv_create";
    assert!(text.contains(last), "{text}");
}
