//! Processes of one machine share memory, unless they are told not to, and the results are the same.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use super::job::{Job, LIMIT, Process, Turn, soon};
use super::program::ROUNDS;

/// How many segments a process has mapped.
fn segments(process: &Process) -> usize {
    files_of(process.number()).len()
}

/// The files of the segments that a process has mapped, by their number in the system.
fn files_of(process: u32) -> BTreeSet<String> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let segments = maps.lines().filter(|line| line.contains("/memfd:kvstore"));
    segments.filter_map(|line| Some(line.split_whitespace().nth(4)?.to_owned())).collect()
}

/// The process that a process has started.
fn child_of(process: &Process) -> Option<u32> {
    let number = process.number();
    let children = fs::read_to_string(format!("/proc/{number}/task/{number}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Starts a program in process numbers of its own (a PID namespace), as in a container.
fn apart() -> Option<Vec<String>> {
    const OWN: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let as_root = [&OWN[..], &["--map-root-user"]].concat();
    let ways = [OWN.to_vec(), as_root];
    let works = |way: &&Vec<&str>| {
        let output = Command::new(way[0]).args(&way[1..]).args(["sh", "-c", "echo $$"]).output();
        output.is_ok_and(|output| output.status.success() && output.stdout == b"1\n")
    };
    let way = ways.iter().find(works)?;
    Some(way.iter().map(|&word| word.into()).collect())
}

/// Lets a job make some rounds; gives how many segments its processes then have.
fn segments_of(job: &Job) -> [usize; 3] {
    let mut running = job.start();
    running.workers()[0].hear("round 20");
    let found = [
        segments(running.scheduler()),
        segments(&running.servers()[0]),
        segments(&running.workers()[0]),
    ];
    running.end_well();
    found
}

#[test]
fn two_processes_have_a_segment_for_each_direction() {
    let _turn = Turn::take();
    let job = Job::new("load", 1, 1).told(ROUNDS, 40);
    let [_, server, worker] = segments_of(&job);
    // And one of each to the scheduler, and back.
    assert!(server >= 2 && worker >= 2, "{server} and {worker}");
}

/// Containers of one pod have one network, but process numbers of their own.
#[test]
fn processes_with_process_numbers_of_their_own_share_memory() {
    let _turn = Turn::take();
    let Some(through) = apart() else {
        println!("not run: this user may make no process numbers of its own (PID namespaces)");
        return;
    };
    let plain = Job::new("load", 2, 1).told(ROUNDS, 40);
    let mut apart = plain.clone();
    apart.through = through;
    let all = vec![
        plain.start_scheduler(),
        apart.start_server(0),
        apart.start_worker(0),
        plain.start_worker(1),
    ];
    let mut running = super::job::Running { all, job: plain };
    running.workers()[0].hear("round 20");
    let server = child_of(&running.servers()[0]).unwrap();
    let first = child_of(&running.workers()[0]).unwrap();
    for number in [server, first] {
        let space = |number: &str| fs::read_link(format!("/proc/{number}/ns/pid")).unwrap();
        assert_ne!(space(&number.to_string()), space("self"));
    }
    let second = running.workers()[1].number();
    let shared = files_of(server);
    for worker in [first, second] {
        let common = files_of(worker).intersection(&shared).count();
        assert_eq!(common, 2, "{:?} and {shared:?}: one for each direction", files_of(worker));
    }
    running.end_well();
}

/// The socket that gives descriptors, and its thread, end once all have been given.
#[test]
fn nothing_listens_for_offers_that_were_taken() {
    let _turn = Turn::take();
    let mut running = Job::new("load", 1, 1).told(ROUNDS, 40).start();
    running.workers()[0].hear("round 20");
    for process in [&running.servers()[0].number(), &running.workers()[0].number()] {
        let tasks = || fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
        let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm"));
        let names = || tasks().filter_map(|task| name(task).ok()).collect::<Vec<_>>();
        let is_over = || !names().iter().any(|name| name.trim() == "kvstore-offers");
        assert!(names().iter().any(|name| name.trim() == "kvstore-ring"), "{:?}", names());
        assert!(soon(LIMIT, is_over), "{:?}", names());
    }
    running.end_well();
}

#[test]
fn whoever_does_not_want_it_has_none() {
    let _turn = Turn::take();
    let job = Job::new("load", 1, 1).told(ROUNDS, 40).with("shm", "no");
    assert_eq!(segments_of(&job), [0; 3]);
    // One side alone cannot have it, and its offers end.
    let job = Job::new("load", 1, 1).told(ROUNDS, 40);
    let mut all = vec![job.start_scheduler(), job.clone().with("shm", "no").start_server(0)];
    let mut worker = job.start_worker(0);
    worker.hear("round 20");
    assert_eq!(segments(&all[1]), 0, "a server that was told no");
    all.push(worker);
    all.into_iter().for_each(|process| {
        let end = process.end(LIMIT);
        assert_eq!(end.status, Some(0), "{}", end.text());
    });
}

#[test]
fn a_process_that_is_gone_leaves_its_memory_to_nobody() {
    let _turn = Turn::take();
    let job = Job::new("load", 2, 1).told(ROUNDS, 4_000);
    let job = job.with("on_worker_loss", "continue").with("peer_timeout_ms", 1_000);
    let mut running = job.start();
    running.workers()[0].hear("round 20");
    let before = segments(&running.servers()[0]);
    running.workers()[1].kill();
    let server = &running.servers()[0];
    let fewer = soon(LIMIT, || segments(server) < before);
    assert!(fewer, "{before} segments before, {} now", segments(server));
}

#[test]
fn float_sums_have_the_bits_of_a_loop_without_it_too() {
    let _turn = Turn::take();
    let job = Job::new("float sums", 3, 2).with("slice_bytes", 65_536).with("shm", "no");
    job.told(ROUNDS, 50).run().iter().for_each(|end| {
        assert_eq!(end.status, Some(0), "{}", end.text());
    });
}
