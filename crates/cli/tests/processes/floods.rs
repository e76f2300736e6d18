//! A reader that asks as fast as it can: the server that it asks keeps a bounded amount of it, the rounds of
//! the others go on with the right values, and what is refused is counted in the log.

use std::time::{Duration, Instant};

use super::attacker::{Frame, WORKER};
use super::common::wait::free_address;
use super::forged::{Access, Claims, claim, with_both};
use super::hostile::job_name;
use super::job::{Job, LIMIT, Process};
use super::keys::start;
use super::program::{PAUSE_MS, ROUNDS};
use super::session::Session;

/// The rank of the reader, behind those of the workers.
const READER: u32 = 2;
const PULL: u8 = 22;
const PAYLOAD: usize = 1 << 20;
/// The small key of `train`.
const KEY: u64 = 8;
/// A round that will never be, and the one at the end of all rounds, for which a pull waits.
const NEVER: u64 = 1 << 63;
const ROUNDS_OVER: u64 = u64::MAX;
/// Rounds of the others, and how long each flood takes.
const TURNS: usize = 400;
const FLOOD: Duration = Duration::from_secs(3);
/// What docs/operate/security.md allows a reader to have at a server, in kilobytes: lists of rows, and
/// messages ahead of one that is missing.
const ALLOWED: u64 = (64 + 5) << 10;
/// What the server may need besides, for what its sockets and buffers hold on the way.
const BESIDES: u64 = 64 << 10;

/// A reader in the middle of its stream to a server.
struct Flood<'a> {
    job: &'a Job,
    scheduler: Session,
    server: Session,
    sent: u64,
}

impl Flood<'_> {
    /// Asks for a round as fast as the server takes it, and stays a member; gives the most memory that the
    /// server had meanwhile.
    fn pull(&mut self, round: u64, server: &Process) -> u64 {
        let (until, mut most) = (Instant::now() + FLOOD, 0);
        let frame = Frame::hello(&job_name(self.job), WORKER, READER, (0, 0), "");
        let mut frame = Frame { kind: PULL, key: KEY, round, payload: vec![0; PAYLOAD], ..frame };
        while Instant::now() < until {
            self.sent += 1;
            (frame.sequence, frame.request) = (self.sent, self.sent);
            self.server.put(&frame.bytes()).unwrap();
            if self.sent.is_multiple_of(16) {
                self.stay();
                most = most.max(server.kilobytes("VmRSS").unwrap_or(0));
            }
        }
        most
    }

    /// The others hear that the reader is still there.
    fn stay(&mut self) {
        claim(&mut self.scheduler, self.job, &Claims::place(READER));
    }
}

/// The count in the last line of a log that has a text.
fn counted(log: &str, text: &str) -> u64 {
    let line = log.lines().rfind(|line| line.contains(text)).expect("a line of the log");
    let times = line.split_once("; ").and_then(|(_, rest)| rest.split_once(" times since "));
    times.map_or(1, |(count, _)| count.parse().unwrap())
}

fn flood(access: &Access) {
    let bind = free_address();
    let job = Job::new("train", 3, 1).told(ROUNDS, TURNS).told(PAUSE_MS, 20);
    let job = job.with("peer_timeout_ms", 10_000).with("shm", "no");
    let mut running = {
        let mut two = job.clone();
        two.workers = 2;
        start(&two, |_, role| {
            let given = access.give(&job, role);
            if role == "server" { given.with("bind", &bind) } else { given }
        })
    };
    let mut scheduler = access.enter(&job.root);
    let place = Claims::place(READER);
    for worker in running.workers() {
        while worker.count("sum 5 ") == 0 {
            claim(&mut scheduler, &job, &place);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let server = access.enter(&bind);
    let mut flood = Flood { job: &job, scheduler, server, sent: 0 };
    let before = running.servers()[0].kilobytes("VmRSS").unwrap();
    let most = flood.pull(NEVER, &running.servers()[0]);
    let asked = flood.sent;
    assert!(most < before + BESIDES, "{before} kB, then {most} kB after {asked} pulls");
    let most = flood.pull(ROUNDS_OVER, &running.servers()[0]);
    assert!(most < before + ALLOWED + BESIDES, "{before} kB, then {most} kB");
    assert!(!running.workers()[0].has_ended(), "the flood was longer than the job");
    let rounds = running.workers()[0].count("sum ");
    assert!(rounds > 20, "{rounds} rounds");
    flood.stay();
    let all = std::mem::take(&mut running.all).into_iter();
    let ends: Vec<_> = all.map(|process| process.end(LIMIT)).collect();
    for end in &ends {
        assert_eq!(end.status, Some(0), "{end:?}");
    }
    for end in &ends[2..] {
        let sums: Vec<_> = end.lines.iter().filter(|line| line.text.starts_with("sum ")).collect();
        assert_eq!(sums.len(), TURNS, "{}", end.name);
        assert!(sums.iter().all(|sum| sum.text.ends_with(" 3 3")), "{}", end.text());
    }
    let refused = "worker 2 at reader@mallory: refused a pull that can never be answered";
    assert_eq!(counted(&ends[1].text(), refused), asked);
}

#[test]
fn pulls_that_can_never_be_answered_grow_no_server() {
    with_both("floods", flood);
}
