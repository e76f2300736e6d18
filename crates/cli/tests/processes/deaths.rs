//! Processes that die: the others notice it in time and say who is gone, and nothing is left.
#![allow(clippy::print_stdout, reason = "a test prints what it has measured")]

use std::thread;
use std::time::{Duration, Instant};

use super::job::{End, Job, LIMIT, MARGIN, Running, Turn};
use super::program::{COUNT, PAUSE_MS, ROUNDS};

const PEER_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a job without a scheduler waits for a new one, and how long it waits for all to come.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a process that has failed may take to end all that it has.
const LEAVE_MS: u64 = 2_500;

/// A short job that exchanges a value of some slices, and uses the scheduler too.
fn job() -> Job {
    Job::new("train", 3, 2)
        .with("peer_timeout_ms", PEER_TIMEOUT.as_millis())
        .with("start_timeout_ms", START_TIMEOUT.as_millis())
        .told(ROUNDS, 60)
        .told(PAUSE_MS, 10)
}

/// Whether a text says that somebody did not come, or did not stay: alone, or with others that gave up.
pub fn is_missed(text: &str, name: &str) -> bool {
    let is_named = |names: &str| names.split(',').any(|it| it.trim() == name);
    let parts = text.split([':', ';']);
    parts
        .filter_map(|it| it.split_once(" did not come").or(it.split_once(" came and went")))
        .any(|(names, _)| is_named(names))
}

/// A process that failed ends its part quickly.
pub fn check_leaving(end: &End) {
    if let Some(left) = end.said("left after ") {
        let ms: u64 = left.split(' ').next().unwrap().parse().unwrap();
        assert!(ms < LEAVE_MS + MARGIN.as_millis() as u64 / 4, "{end:?}");
    }
}

/// A job that is at work, with values of some megabytes if they are `large`.
fn at_work(job: Job, large: bool) -> Running {
    let count = if large { 2_000_000 } else { 1_000 };
    let job = job.told(COUNT, count).told(ROUNDS, 1_000_000).told(PAUSE_MS, 1);
    let mut running = job.start();
    running.hear("sum 3");
    running
}

/// The others hear of a death from the system, long before the timeout.
#[test]
fn a_killed_process_is_noticed_at_once() {
    let _turn = Turn::take();
    let slow = Duration::from_secs(30);
    for (victim, large) in [(3, false), (4, true), (1, false), (2, true)] {
        let mut running = at_work(job().with("peer_timeout_ms", slow.as_millis()), large);
        let name = running.all[victim].name.clone();
        let killed = Instant::now();
        running.all[victim].kill();
        for end in running.end(LIMIT) {
            if end.name.starts_with("worker") && end.name != name {
                assert_eq!(end.status, Some(40), "{end:?}");
                let text = end.said("error KV_ERR_PEER_LOST").unwrap();
                assert!(text.contains(&format!("{name} at ")), "{end:?}");
                let took = end.said_at("error").unwrap() - killed;
                assert!(took < MARGIN, "{name}: after {took:?}");
                check_leaving(&end);
            } else if end.name != name {
                assert_eq!(end.status, Some(0), "{name}: {end:?}");
            }
        }
    }
}

/// How long a worker takes to report the death of another process of its job.
fn time_of_notice(victim: usize) -> Duration {
    let mut running = at_work(job().with("peer_timeout_ms", 30_000), false);
    let name = running.all[victim].name.clone();
    let killed = Instant::now();
    running.all[victim].kill();
    let ends = running.end(LIMIT);
    let others = ends.iter().filter(|end| end.name.starts_with("worker") && end.name != name);
    let took = others.map(|end| end.said_at("error").unwrap() - killed).max().unwrap();
    println!("the death of {name} is known after {took:?}");
    took
}

/// The documented times of a death by a signal, which a busy machine exceeds now and then.
#[test]
fn a_death_is_known_in_the_documented_time() {
    let _turn = Turn::take();
    for (victim, ms) in [(1, 200), (3, 1_300)] {
        let is_kept = (0..5).any(|_| time_of_notice(victim) < Duration::from_millis(ms));
        assert!(is_kept, "{victim}: {ms} ms");
    }
}

#[test]
fn the_text_of_a_loss_names_the_call_the_key_and_the_peer() {
    let _turn = Turn::take();
    let mut running = at_work(job(), false);
    running.workers()[1].kill();
    for end in running.end(LIMIT) {
        if let ("worker 0" | "worker 2", Some(text)) =
            (&*end.name, end.said("error KV_ERR_PEER_LOST "))
        {
            let call = ["push: ", "pull: ", "barrier "].iter().any(|call| text.starts_with(call));
            let key = ["key \"weight\"", "key 8", "barrier "].iter().any(|key| text.contains(key));
            assert!(call && key && text.contains("worker 1 at "), "{text}");
            assert!(text.ends_with(" is lost"), "{text}");
        }
    }
}

/// Two workers wait in a resume for the one that dies.
#[test]
fn a_death_inside_a_resume_ends_it_or_leaves_the_worker_out() {
    let _turn = Turn::take();
    for on_loss in ["fail", "continue"] {
        let mut running = Job::new("epochs", 3, 2).with("on_worker_loss", on_loss).start();
        running.hear("epoch 3 9");
        thread::sleep(Duration::from_millis(500));
        running.workers()[1].kill();
        for end in running.end(LIMIT) {
            if !["worker 0", "worker 2"].contains(&&*end.name) {
                continue;
            }
            if on_loss == "continue" {
                assert_eq!(end.status, Some(0), "{end:?}");
                assert!(end.said("epoch 20 ").is_some(), "{end:?}");
                continue;
            }
            let text = end.said("error KV_ERR_PEER_LOST ").expect("the loss is told");
            assert!(text.starts_with("resume 4: ") && text.contains("worker 1 at "), "{text}");
        }
    }
}

#[test]
fn a_new_scheduler_on_the_same_address_takes_the_job_over() {
    let _turn = Turn::take();
    for program in ["train", "barriers", "epochs"] {
        let job = Job::new(program, 3, 2).told(ROUNDS, 150).told(PAUSE_MS, 10);
        let mut running = job.start();
        running.hear(match program {
            "train" => "sum 5",
            "barriers" => "barrier 5",
            _ => "epoch 3 9",
        });
        running.scheduler().kill();
        thread::sleep(Duration::from_millis(300));
        let scheduler = job.start_scheduler();
        let former = std::mem::replace(running.scheduler(), scheduler);
        assert_eq!(former.end(LIMIT).signal, Some(9));
        for end in running.end_well() {
            assert!(end.said("closed").is_some(), "{end:?}");
        }
    }
}

#[test]
fn a_job_that_goes_on_has_the_sums_of_who_is_left() {
    let _turn = Turn::take();
    let job = Job::new("train", 3, 2)
        .with("on_worker_loss", "continue")
        .told(ROUNDS, 200)
        .told(COUNT, 200_000)
        .told(PAUSE_MS, 5);
    let mut running = job.start();
    running.hear("sum 5");
    running.workers()[1].kill();
    let ends = running.end(LIMIT);
    for end in ends.iter().filter(|end| end.name != "worker 1") {
        assert_eq!(end.status, Some(0), "{end:?}");
    }
    for end in ends.iter().filter(|end| ["worker 0", "worker 2"].contains(&&*end.name)) {
        let sums: Vec<&str> =
            end.lines.iter().filter_map(|it| it.text.strip_prefix("sum ")).collect();
        assert_eq!(sums.len(), 200, "{end:?}");
        // 1 + 2 + 3, and without worker 1, for each of the two keys; slices of the round in
        // which it died may be either.
        assert!(sums[..3].iter().all(|sums| sums.ends_with(" 6 6")), "{sums:?}");
        assert!(sums[190..].iter().all(|sums| sums.ends_with(" 4 4")), "{sums:?}");
    }
}
