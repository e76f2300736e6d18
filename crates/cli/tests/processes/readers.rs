//! A reader that dies, stands still or is cut off changes nothing for the others: no sum, no barrier, no
//! save, and it ends nothing, with `on_worker_loss=fail` too.

use std::time::Duration;

use super::common::folder::Folder;
use super::common::network::{NEAR, Network};
use super::job::{Job, LIMIT, Process, Turn, amount};
use super::network::is_inside;
use super::program::{COUNT, FILE, PAUSE_MS, PROGRAM, ROUNDS};

const WORKERS: usize = 2;
/// Rounds that go on for longer than it takes to find out that the reader is gone.
const TURNS: usize = 50;
const PAUSE: Duration = Duration::from_millis(50);
const PEER_TIMEOUT: Duration = Duration::from_millis(1_500);

/// A job whose workers save after each round.
fn job(folder: &Folder, rule: &str) -> Job {
    Job::new("saves", WORKERS + 1, 2)
        .with("on_worker_loss", rule)
        .with("peer_timeout_ms", PEER_TIMEOUT.as_millis())
        .told(COUNT, 1_000)
        .told(ROUNDS, TURNS)
        .told(PAUSE_MS, PAUSE.as_millis())
        .told(FILE, folder.file("state").display())
}

fn reader(job: &Job) -> Process {
    let job = job.clone().told("KV_ROLE", "reader").told(PROGRAM, "looks on").told(ROUNDS, 100_000);
    job.start_worker(WORKERS)
}

/// Everything but the reader.
fn others(job: &Job) -> Vec<Process> {
    let mut all = vec![job.start_scheduler()];
    all.extend((0..2).map(|rank| job.start_server(rank)));
    all.extend((0..WORKERS).map(|rank| job.start_worker(rank)));
    all
}

/// All rounds have the sums of both workers, and every save succeeds.
fn end_well(all: Vec<Process>) {
    for end in all.into_iter().map(|process| process.end(LIMIT)) {
        assert_eq!(end.status, Some(0), "{end:?}");
        assert!(end.said("unsaved").is_none(), "{end:?}");
        if end.name.starts_with("worker") {
            let said: Vec<&str> =
                end.lines.iter().filter_map(|it| it.text.strip_prefix("saved ")).collect();
            let expected: Vec<String> =
                (1..=TURNS).map(|round| format!("{round} {}", 3 * round)).collect();
            assert_eq!(said, expected, "{}", end.name);
        }
    }
}

/// Hits the reader of a job at work by a signal.
fn hit(signal: &str, rule: &str) {
    let folder = Folder::new("readers");
    let job = job(&folder, rule);
    let (mut all, mut reader) = (others(&job), reader(&job));
    all[3..].iter_mut().for_each(|worker| _ = worker.hear("saved 3 "));
    reader.hear("looked");
    reader.signal(signal);
    end_well(all);
    if signal == "STOP" {
        reader.signal("CONT");
        let end = reader.end(LIMIT);
        assert!(end.text().contains("KV_ERR_"), "it is told that the job went on: {end:?}");
    }
}

#[test]
fn a_reader_that_is_killed_or_stopped_disturbs_no_other_process() {
    let _turn = Turn::take();
    let rules = ["fail", "continue"];
    for _ in 0..amount(1, 20) {
        for rule in &rules[..amount(1, 2)] {
            ["KILL", "STOP"].iter().for_each(|signal| hit(signal, rule));
        }
    }
}

#[test]
fn a_reader_that_is_cut_off_disturbs_no_other_process() {
    if !is_inside("readers::a_reader_that_is_cut_off_disturbs_no_other_process") {
        return;
    }
    for _ in 0..amount(1, 20) {
        let (network, folder) = (Network::new(), Folder::new("readers-cut"));
        let mut job = job(&folder, "fail").with("insecure", "yes").with("shm", "no");
        job.root = format!("{NEAR}:9000");
        let mut far = job.clone();
        far.through = network.way().to_vec();
        let mut all = others(&job.clone().with("bind", NEAR));
        let mut reader = reader(&far);
        all[3..].iter_mut().for_each(|worker| _ = worker.hear("saved 3 "));
        reader.hear("looked");
        // The others call each other at the near end of the wire, which stays up.
        assert!(network.far("ip", &["link", "set", "far", "down"]).status().unwrap().success());
        end_well(all);
        drop(reader);
    }
}
