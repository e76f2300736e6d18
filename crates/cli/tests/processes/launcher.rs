//! Whole jobs under `kvstore run`, and what servers do with signals.

use std::process::Command;
use std::time::{Duration, Instant};

use super::job::{End, Job, KVSTORE, LIMIT, MARGIN, Process, Turn, living, soon, worker};
use super::program::{PAUSE_MS, PROGRAM, ROUNDS};

/// `kvstore run` with these options, for one of the programs.
fn launcher(options: &[&str], program: &str) -> Command {
    let mut command = Command::new(KVSTORE);
    let worker = worker();
    command.arg("run").args(options).arg("--").arg(worker.get_program()).args(worker.get_args());
    for (name, value) in [(PROGRAM, program), ("KV_THREADS", "1"), ("KV_PEER_TIMEOUT_MS", "3000")] {
        command.env(name, value);
    }
    command
}

fn run(options: &[&str], program: &str) -> End {
    Process::start("launcher", launcher(options, program)).end(LIMIT)
}

#[test]
fn a_whole_job_ends_with_status_0() {
    let _turn = Turn::take();
    let end = run(&["-v", "-n", "3", "-s", "2"], "unequal counts");
    let closed = end.lines.iter().filter(|line| line.text == "closed").count();
    assert_eq!((end.status, closed), (Some(0), 3), "{end:?}");
    // Servers and the scheduler went by themselves.
    let ended =
        |line: &&str| line.contains("kvstore run: ") && line.contains("ended with status 0");
    assert_eq!(end.text().lines().filter(ended).count(), 6, "{end:?}");
}

#[test]
fn a_worker_that_fails_ends_the_job_with_its_status() {
    let _turn = Turn::take();
    let end = run(&["-n", "3", "-s", "2", "--linger-ms", "20000"], "fails");
    let text = end.text();
    assert_eq!(end.status, Some(7), "{text}");
    assert!(text.contains("failed because worker 1 ended first, with status 7"), "{text}");
    // The others have seen it themselves.
    for rank in [0, 2] {
        assert!(text.contains(&format!("worker {rank}  ended with status 40")), "{text}");
    }
    assert!(text.contains("worker 1 at "), "{text}");
}

#[test]
fn servers_that_run_the_program_have_its_updater() {
    let _turn = Turn::take();
    let end = run(&["-n", "2", "-s", "2", "--serve-with-program"], "updater");
    assert_eq!(end.status, Some(0), "{end:?}");
    let said = |word: &str| end.lines.iter().filter(|line| line.text == word).count();
    assert_eq!((said("closed"), said("served")), (2, 2), "{end:?}");
}

#[test]
fn a_launcher_that_is_killed_leaves_nobody_of_its_job() {
    let _turn = Turn::take();
    let mark = format!("<{}>", std::process::id());
    let mut command = launcher(&["-n", "2", "-s", "2"], "train");
    command.env("TEST_MARK", &mark);
    let mut process = Process::start("launcher", command);
    process.hear("sum 3");
    let mark = format!("TEST_MARK={mark}");
    // The launcher, its keeper, a scheduler, two servers and two workers.
    assert_eq!(living(&mark).len(), 7);
    process.kill();
    assert!(
        soon(Duration::from_secs(2) + MARGIN, || living(&mark).is_empty()),
        "{:?}",
        living(&mark)
    );
}

#[test]
fn a_server_that_is_asked_to_end_ends_at_once() {
    let _turn = Turn::take();
    for (signal, status) in [("TERM", 143), ("INT", 130)] {
        let job = Job::new("train", 2, 2).told(ROUNDS, 1_000_000).told(PAUSE_MS, 1);
        let mut running = job.start();
        running.hear("sum 3");
        let start = Instant::now();
        let server = running.all.remove(1);
        server.signal(signal);
        let end = server.end(LIMIT);
        assert!(end.at - start < Duration::from_secs(2) + MARGIN / 4, "{end:?}");
        assert_eq!((end.status, end.text()), (Some(status), String::new()));
        for end in running.end(LIMIT) {
            if end.name.starts_with("worker") {
                let text = end.said("error KV_ERR_PEER_LOST").unwrap_or_else(|| panic!("{end:?}"));
                assert!(text.contains("server 0 at 127.0.0.1:"), "{text}");
                assert!(end.said_at("error").unwrap() - start < MARGIN, "{end:?}");
            }
        }
    }
}
