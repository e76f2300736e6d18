//! Processes that stand still: for long, and they are lost; for a moment, and nobody minds.

use std::thread;
use std::time::{Duration, Instant};

use super::job::{End, Job, LIMIT, MARGIN, Turn};
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

#[test]
fn a_worker_that_stands_still_is_lost_and_told_so_when_it_wakes() {
    let _turn = Turn::take();
    for count in [1_000, 2_000_000] {
        let end = stop_for_long(4, count);
        let text = end.said("error KV_ERR_EVICTED").unwrap_or_else(|| panic!("{end:?}"));
        assert!(text.contains("worker 1 at ") && text.contains("declared it lost"), "{text}");
        assert_eq!(end.status, Some(41));
    }
}

#[test]
fn a_server_that_stands_still_is_lost_and_told_so_when_it_wakes() {
    let _turn = Turn::take();
    for count in [1_000, 2_000_000] {
        let end = stop_for_long(1, count);
        let text = end.text();
        assert!(text.contains("server 0 at 127.0.0.1:"), "{text}");
        assert!(text.contains("declared it lost (KV_ERR_EVICTED)"), "{text}");
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
    thread::sleep(2 * PEER_TIMEOUT);
    running.scheduler().signal("CONT");
    for end in running.end_well() {
        assert!(end.said("closed").is_some(), "{end:?}");
    }
}
