//! Looks at running jobs from outside: what they show, and that nobody minds them.

use std::fs;
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use kvstore::{Config, ErrorKind, Node, Observer, State, View};

use super::job::{Job, KVSTORE, LIMIT, Process, Turn, free_address, soon};
use super::program::{COUNT, PAUSE_MS, ROUNDS};

const TIMEOUT: Duration = Duration::from_secs(20);
/// Members of a small job for its scheduler.
const MEMBERS: usize = 3;

fn observer(root: &str) -> Observer {
    Observer::open(&Config::new().with("root", root).unwrap()).unwrap()
}

fn node<'a>(view: &'a View, role: &str, rank: u32) -> &'a Node {
    view.nodes.iter().find(|node| (node.role, node.rank) == (role, rank)).unwrap()
}

/// Looks until the job is as it should be.
fn look_until(observer: &mut Observer, what: &str, is_so: impl Fn(&View) -> bool) -> View {
    let mut last = None;
    let seen = soon(LIMIT, || {
        let view = observer.look(TIMEOUT).unwrap();
        let so = is_so(&view);
        last = Some(view);
        so
    });
    assert!(seen, "never {what}: {last:#?}");
    last.unwrap()
}

#[test]
fn a_look_shows_who_does_what_and_who_waits_for_whom() {
    let _turn = Turn::take();
    let job = Job::new("train", 3, 2)
        .with("peer_timeout_ms", 20_000)
        .with("on_worker_loss", "continue")
        .told(COUNT, 200_000)
        .told(PAUSE_MS, 1);
    let mut running = job.start();
    running.hear("sum 3");
    let mut observer = observer(&job.root);
    let first = observer.look(TIMEOUT).unwrap();
    assert_eq!((first.kind, first.num_workers, first.num_servers), (Some("dist_sync"), 3, 2));
    assert_eq!((first.nodes.len(), &first.missing[..]), (6, &[][..]));
    let view = look_until(&mut observer, "at work", |view| {
        let pushed = node(view, "worker", 2).facts.as_ref().unwrap().push.p99_us;
        // Two looks may find the same report.
        let rated = |node: &Node| node.facts.as_ref().is_some_and(|it| it.rates.is_some());
        pushed.is_some() && view.nodes.iter().all(rated)
    });
    for node in &view.nodes {
        let facts = node.facts.as_ref().unwrap();
        assert_eq!(node.state, State::Here, "{node:?}");
        let it = &facts.counters;
        assert!(facts.age_s > 0.0 && it.bytes_in > 0 && it.messages_out > 0, "{facts:?}");
        let rates = facts.rates.unwrap();
        assert!(node.role == "scheduler" || rates.bytes_in_per_s > 0.0, "{node:?}");
        match node.role {
            "worker" => {
                assert!(it.round >= 3 && facts.push.count >= 6 && it.keys == 2, "{facts:?}");
                assert!(facts.push.p50_us <= facts.push.p99_us);
            }
            "server" => assert!(it.stored_bytes > 0 && it.rounds > 0, "{facts:?}"),
            _ => {}
        }
    }
    let stored = |rank| node(&view, "server", rank).facts.as_ref().unwrap().counters.stored_bytes;
    assert_eq!(stored(0) + stored(1), 4 * (200_000 + 3));

    running.workers()[1].signal("STOP");
    let view = look_until(&mut observer, "waiting", |view| {
        let calls = [0, 2].map(|rank| node(view, "worker", rank).facts.as_ref().unwrap());
        view.slowest_worker == Some(1)
            && node(view, "worker", 1).state == State::Silent
            && calls.iter().all(|facts| {
                let waits =
                    |it: &kvstore::Waiting| it.age_ms >= 1_000 && it.awaited == ["worker 1"];
                facts.waiting.iter().any(waits)
            })
    });
    let waiting = &node(&view, "worker", 0).facts.as_ref().unwrap().waiting[0];
    assert!(["push", "pull", "barrier"].contains(&waiting.call), "{waiting:?}");
    let known = [Some("weight"), Some("8"), None];
    assert!(known.contains(&waiting.key.as_deref()), "a key by its name: {waiting:?}");
    running.workers()[1].signal("CONT");
    running.hear("sum");
    running.workers()[2].signal("KILL");
    let lost = |view: &View| node(view, "worker", 2).state == State::Lost;
    look_until(&mut observer, "lost", lost);
}

/// What `kvstore status` prints is whole, and the job neither ends nor waits because of it.
#[test]
fn those_who_look_leave_nothing_behind_and_disturb_nobody() {
    let _turn = Turn::take();
    let job = Job::new("train", 2, 1).told(COUNT, 20_000).told(PAUSE_MS, 5).told(ROUNDS, 1_000_000);
    let mut running = job.start();
    running.hear("sum 3");
    let status = |format: &str| {
        let mut command = Command::new(KVSTORE);
        command.args(["status", &job.root, "--format", format, "--interval-ms", "50"]);
        command
    };
    let output = status("table").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("2 workers, 1 server") && table.contains("worker 1"), "{table}");
    let json = |output: std::process::Output| -> serde_json::Value {
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let most = resources(running.scheduler());
    // One that stands still in the middle of its look.
    let still = Process::start("a status", status("json"));
    still.signal("STOP");
    for _ in 0..4 * MEMBERS {
        let value = json(status("json").output().unwrap());
        assert_eq!(value["nodes"].as_array().unwrap().len(), 4, "{value}");
        assert_eq!(value["started"], true);
    }
    running.hear("sum 30");
    still.signal("KILL");
    drop(still);
    let calm = soon(LIMIT, || {
        resources(running.scheduler()).iter().zip(most).all(|(now, most)| *now <= most)
    });
    assert!(calm, "{:?}, at most {most:?}", resources(running.scheduler()));
}

#[test]
fn two_running_jobs_are_compared_by_their_digests() {
    let _turn = Turn::take();
    let digests = |job: &Job| -> serde_json::Value {
        let mut command = Command::new(KVSTORE);
        command.args(["status", &job.root, "--digests", "--interval-ms", "0"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["digests"].take()
    };
    let job = |servers| {
        let job = Job::new("train", 2, servers).with("digests", "values");
        job.with("slice_bytes", 8192).told(COUNT, 5_000).told(PAUSE_MS, 5).told(ROUNDS, 1_000_000)
    };
    let jobs = [job(1), job(2)];
    let mut running = jobs.each_ref().map(Job::start);
    // One of them is further.
    running[0].hear("sum 12");
    running[1].hear("sum 5");
    let [further, later] = jobs.each_ref().map(digests);
    let at = |seen: &serde_json::Value, round: u64| {
        seen["rounds"].as_array().unwrap().iter().find(|it| it["round"] == round).cloned()
    };
    assert_eq!(further["scope"], "values");
    for round in [1, 2, 4] {
        let [one, other] = [&further, &later].map(|seen| at(seen, round));
        assert!(one.is_some() && one == other, "round {round}: {further} and {later}");
    }
    assert!(at(&further, 8).is_some(), "{further}");
    let output = Command::new(KVSTORE)
        .args(["status", &jobs[1].root, "--digests", "--interval-ms", "0", "--format", "table"])
        .output()
        .unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    let digest = later["rounds"][0]["digest"].as_str().unwrap();
    assert!(table.contains("digest of all values") && table.contains(digest), "{table}");
}

/// Open files and threads.
fn resources(process: &Process) -> [usize; 2] {
    let count = |what: &str| {
        let folder = format!("/proc/{}/{what}", process.number());
        fs::read_dir(folder).map_or(0, Iterator::count)
    };
    ["fd", "task"].map(count)
}

#[test]
fn a_job_that_waits_for_somebody_says_for_whom() {
    let _turn = Turn::take();
    let job = Job::new("train", 2, 2);
    let _scheduler = job.start_scheduler();
    let _server = job.start_server(0);
    assert!(soon(LIMIT, || TcpStream::connect(&job.root).is_ok()));
    let mut observer = observer(&job.root);
    let view = look_until(&mut observer, "met", |view| view.nodes.len() == 2);
    assert!(!view.started);
    assert_eq!(view.missing, ["server 1", "worker 0", "worker 1"]);
}

#[test]
fn where_nobody_answers_a_look_ends_and_says_why() {
    let start = Instant::now();
    let error = observer(&free_address()).look(TIMEOUT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Network, "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let answer = thread::spawn(move || observer(&address).look(Duration::from_secs(2)));
    let error = answer.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(start.elapsed() < LIMIT);
}
