//! Whole jobs under `kvstore run`, what it says of their deaths, and what servers do with signals.
#![allow(clippy::print_stdout, reason = "a test prints what it has measured")]

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

/// Kills a process of a job under `kvstore run` that is at work, by its title; gives the end of the launcher,
/// and how long the workers took until the last one of them has said that it is lost.
pub fn kill(mut command: Command, title: &str, workers: usize) -> (End, Duration) {
    // Silence, and the end of a connection, would tell later.
    let mut process = Process::start("launcher", {
        command.env("KV_PEER_TIMEOUT_MS", "30000");
        command
    });
    let line = process.hear_of(&format!("kvstore run: {title} is process "));
    let number = line.rsplit(' ').next().unwrap().to_owned();
    process.hear("sum 3");
    let killed = Instant::now();
    assert!(Command::new("kill").args(["-s", "KILL", &number]).status().unwrap().success());
    let end = process.end(LIMIT);
    let errors: Vec<_> = end.lines.iter().filter(|it| it.text.starts_with("error ")).collect();
    let (role, _) = title.split_once(' ').unwrap();
    let others = workers - usize::from(role == "worker");
    assert_eq!(errors.len(), others, "{}", end.text());
    for error in &errors {
        assert!(error.text.starts_with("error KV_ERR_PEER_LOST "), "{}", error.text);
    }
    let took = errors.iter().map(|it| it.at).max().unwrap() - killed;
    println!("the death of {title} under kvstore run is known after {took:?}");
    (end, took)
}

/// Whether the errors of a job repeat the word of its launcher.
pub fn repeats_the_word(end: &End, name: &str) -> bool {
    let errors = end.lines.iter().filter(|it| it.text.starts_with("error "));
    let lost = |text: &str| {
        let rest = text.split_once(&format!("{name} at ")).map(|(_, rest)| rest);
        rest.is_some_and(|it| it.ends_with(" is lost: ended by signal 9, said kvstore run"))
    };
    errors.into_iter().all(|it| lost(&it.text))
}

/// The end of a worker's connection alone is known after a second.
#[test]
fn a_death_under_the_launcher_is_known_by_its_word() {
    let _turn = Turn::take();
    let options = ["-v", "-n", "3", "-s", "2", "--linger-ms", "20000"];
    // A busy machine may be later than the second.
    let is_told = (0..5).any(|_| {
        let (end, took) = kill(launcher(&options, "train"), "worker 1", 3);
        assert!(took < MARGIN, "{took:?}");
        assert_eq!(end.status, Some(137), "{}", end.text());
        repeats_the_word(&end, "worker 1")
    });
    assert!(is_told);
    let (end, took) = kill(launcher(&options, "train"), "server 1", 3);
    assert!(took < MARGIN && end.text().contains("server 1 at 127.0.0.1:"), "{}", end.text());
}

/// The launcher has started a shell, whose child is the worker and lives on.
#[test]
fn the_end_of_a_shell_whose_worker_lives_is_not_announced() {
    let _turn = Turn::take();
    let mut command = Command::new(KVSTORE);
    let worker = worker();
    let script = "\"$@\" & wait";
    command.args(["run", "-v", "-n", "2", "--linger-ms", "3000", "--", "sh", "-c", script, "sh"]);
    command.arg(worker.get_program()).args(worker.get_args());
    command.env(PROGRAM, "train").env("KV_THREADS", "1").env("KV_PEER_TIMEOUT_MS", "30000");
    let mut process = Process::start("launcher", command);
    let line = process.hear_of("kvstore run: worker 1 is process ");
    process.hear("sum 3");
    let number = line.rsplit(' ').next().unwrap();
    assert!(Command::new("kill").args(["-s", "KILL", number]).status().unwrap().success());
    let end = process.end(LIMIT);
    let text = end.text();
    assert!(text.contains("failed because worker 1 ended first, with signal 9"), "{text}");
    assert!(!text.contains("said kvstore run") && !text.contains("KV_ERR_EVICTED"), "{text}");
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
