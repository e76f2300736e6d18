//! Processes that stand still: for long, and they are lost; for a moment, and nobody minds.

use std::thread;
use std::time::{Duration, Instant};

use super::job::{End, Job, LIMIT, MARGIN, Running, Turn, amount};
use super::program::{COUNT, PAUSE_MS, ROUNDS};

const PEER_TIMEOUT: Duration = Duration::from_secs(2);

fn job(count: usize) -> Job {
    Job::new("train", 3, 2)
        .with("peer_timeout_ms", PEER_TIMEOUT.as_millis())
        .with("start_timeout_ms", 20_000)
        .told(COUNT, count)
        .told(PAUSE_MS, 1)
}

/// Stops one process of a job for good, and wakes it when all others have said that it is lost;
/// gives what it says then.
fn stop_for_long(victim: usize, count: usize) -> End {
    let mut running = job(count).start();
    running.hear("sum 3");
    let sleeper = running.all.remove(victim);
    sleeper.signal("STOP");
    let stopped = Instant::now();
    let workers = running.all.iter_mut().filter(|it| it.name.starts_with("worker"));
    for worker in workers {
        let text = worker.hear("error KV_ERR_PEER_LOST");
        let took = stopped.elapsed();
        assert!(text.contains(&format!("{} at ", sleeper.name)), "{text}");
        assert!(took < PEER_TIMEOUT + MARGIN, "{}: after {took:?}", worker.name);
        let left = worker.hear("left after ");
        let ms: u64 = left.split(' ').next().unwrap().parse().unwrap();
        assert!(ms < 2_500 + MARGIN.as_millis() as u64 / 4, "{}: {left}", worker.name);
    }
    sleeper.signal("CONT");
    let end = sleeper.end(LIMIT);
    running.all.into_iter().for_each(|process| _ = process.end(LIMIT));
    end
}

/// The scheduler has told it, or it has found out by itself when all others had ended.
fn is_eviction(text: &str) -> bool {
    text.contains("declared it lost") || text.contains("has not heard any member of the job for ")
}

#[test]
fn a_worker_that_stands_still_is_lost_and_told_so_when_it_wakes() {
    let _turn = Turn::take();
    for count in [1_000, 2_000_000] {
        let end = stop_for_long(4, count);
        let text = end.said("error KV_ERR_EVICTED").unwrap_or_else(|| panic!("{end:?}"));
        assert!(text.contains("worker 1") && is_eviction(text), "{text}");
        assert_eq!(end.status, Some(41));
    }
}

#[test]
fn a_server_that_stands_still_is_lost_and_told_so_when_it_wakes() {
    let _turn = Turn::take();
    for count in [1_000, 2_000_000] {
        let end = stop_for_long(1, count);
        let text = end.text();
        assert!(text.contains("server 0") && is_eviction(&text), "{text}");
        assert!(text.contains("(KV_ERR_EVICTED)"), "{text}");
        assert_eq!(end.status, Some(1));
    }
}

#[test]
fn a_process_that_stands_still_for_a_moment_disturbs_nobody() {
    let _turn = Turn::take();
    let job = job(300_000).with("peer_timeout_ms", 12_000).told(ROUNDS, 60);
    let mut running = job.start();
    running.hear("sum 3");
    for victim in 0..running.all.len() {
        running.all[victim].signal("STOP");
        thread::sleep(Duration::from_millis(400));
        running.all[victim].signal("CONT");
    }
    for end in running.end_well() {
        let sums: Vec<&str> =
            end.lines.iter().filter_map(|it| it.text.strip_prefix("sum ")).collect();
        assert!(sums.len() == 60 && sums.iter().all(|sums| sums.ends_with(" 6 6")), "{sums:?}");
    }
}

/// The others wait for it as for one that is started again.
#[test]
fn a_scheduler_that_stands_still_for_long_disturbs_nobody() {
    let _turn = Turn::take();
    let mut running = job(1_000).told(ROUNDS, 300).told(PAUSE_MS, 5).start();
    running.hear("sum 3");
    running.scheduler().signal("STOP");
    // For longer than connections live on which nothing is heard.
    thread::sleep(Duration::from_secs(12));
    running.scheduler().signal("CONT");
    for end in running.end_well() {
        assert!(end.said("closed").is_some(), "{end:?}");
    }
}

/// At the default timeout; each side of a loss is told apart by the time alone.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

fn small_job() -> Job {
    let job = Job::new("train", 2, 1).with("peer_timeout_ms", DEFAULT_TIMEOUT.as_millis());
    job.told(COUNT, 1_000).told(PAUSE_MS, 10)
}

/// Stops one process of a job at work for so long.
fn stop(running: &mut Running, victim: usize, time: Duration) {
    running.hear("sum 3");
    running.all[victim].signal("STOP");
    thread::sleep(time);
    running.all[victim].signal("CONT");
}

/// Runs so many jobs, some of them side by side.
fn side_by_side(jobs: usize, run: impl Fn(usize) + Sync) {
    const AT_ONCE: usize = 4;
    thread::scope(|scope| {
        for first in 0..AT_ONCE {
            let run = &run;
            scope.spawn(move || (first..jobs).step_by(AT_ONCE).for_each(run));
        }
    });
}

#[test]
fn a_process_that_stands_still_for_less_than_the_timeout_is_never_lost() {
    let _turn = Turn::take();
    side_by_side(amount(3, 50), |number| {
        let mut running = small_job().told(ROUNDS, 60).start();
        // The server or one of the workers.
        stop(&mut running, 1 + number % 3, Duration::from_millis(4_500));
        for end in running.end_well() {
            assert!(end.said("closed").is_some(), "{end:?}");
        }
    });
}

/// Even when all others have ended meanwhile.
#[test]
fn a_worker_that_stands_still_for_longer_than_the_timeout_is_told_when_it_wakes() {
    let _turn = Turn::take();
    side_by_side(amount(4, 100), |number| {
        let shm = if number % 2 == 0 { "yes" } else { "no" };
        let on_loss = if number / 2 % 2 == 0 { "fail" } else { "continue" };
        let job = small_job().with("shm", shm).with("on_worker_loss", on_loss);
        let mut running = job.told(ROUNDS, if on_loss == "fail" { 1_000_000 } else { 600 }).start();
        let time = Duration::from_millis(6_000 + 500 * (number as u64 / 4 % 5));
        stop(&mut running, 3, time);
        let woken = Instant::now();
        let mut ends = running.end(LIMIT);
        let end = ends.remove(3);
        let text = end.said("error KV_ERR_EVICTED").unwrap_or_else(|| panic!("{end:?}"));
        assert!(is_eviction(text), "{text}");
        let took = end.said_at("error").unwrap() - woken;
        assert!(took < DEFAULT_TIMEOUT + Duration::from_secs(1) + MARGIN, "after {took:?}");
        println!("{shm} {on_loss} {time:?}: told after {took:?}: {text}");
    });
}
