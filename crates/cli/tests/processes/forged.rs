//! Hellos that a reader forges: its credential lets it pull, and nothing that it says of the job, of
//! others or of barriers counts. Each attack is made with a token, and with a certificate.

use std::net::TcpListener;
use std::time::Duration;

use super::attacker::{Frame, WORKER, call};
use super::hostile::job_name;
use super::hostile_tls::client_hello;
use super::job::{Job, LIMIT, Process, Running, Turn, soon};
use super::keys::{Keys, start};
use super::program::{PAUSE_MS, ROUNDS};
use super::session::{Login, Session, client};

/// The credentials of a job, and that of a reader, which is for any rank.
pub struct Access {
    keys: Keys,
    is_tls: bool,
}

impl Access {
    fn new(name: &str, is_tls: bool) -> Self {
        let keys = Keys::new(name);
        if is_tls {
            keys.make_roles();
        } else {
            keys.make(&["token", "--for", "reader"]);
        }
        Self { keys, is_tls }
    }

    /// What processes of a role are given.
    pub fn give(&self, job: &Job, role: &str) -> Job {
        if self.is_tls { self.keys.secured(job, role) } else { self.keys.tokened(job, "job") }
    }

    /// The first words of a TLS handshake; None for a job without TLS.
    pub fn client_hello(&self) -> Option<Vec<u8>> {
        self.is_tls.then(|| client_hello(&client(&self.keys, None)))
    }

    /// A session of the reader with a process of the job.
    pub fn enter(&self, to: &str) -> Session {
        assert!(soon(LIMIT, || call(to, &[]).is_some()));
        let login = if self.is_tls {
            Login::certificate(&self.keys, "reader")
        } else {
            Login::token(&self.keys, "reader")
        };
        Session::open(to, "mallory", &login).unwrap()
    }
}

/// Plays a test with tokens, and with certificates.
pub fn with_both(name: &str, play: impl Fn(&Access)) {
    let _turn = Turn::take();
    for (kind, is_tls) in [("token", false), ("tls", true)] {
        play(&Access::new(&format!("{name}-{kind}"), is_tls));
    }
}

/// What stands in a hello beside the address.
#[derive(Default)]
pub struct Claims {
    rank: Option<u32>,
    /// Names and values.
    terms: Vec<(&'static str, &'static str)>,
    epoch: u32,
    /// Role, rank, state and address of members.
    members: Vec<(u8, u32, u8, String)>,
    passed: u64,
    /// It calls itself a worker that pushes.
    works: bool,
}

const SERVER: u8 = 2;
const LOST: u8 = 1;
const ONLY_READS: u8 = 2;

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&u16::try_from(text.len()).unwrap().to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn sized(out: &mut Vec<u8>, fields: &[u8]) {
    out.extend_from_slice(&u32::try_from(fields.len()).unwrap().to_le_bytes());
    out.extend_from_slice(fields);
}

impl Claims {
    /// It takes a place, or keeps it.
    pub fn place(rank: u32) -> Self {
        Self { rank: Some(rank), ..Self::default() }
    }

    fn payload(&self, job: &Job) -> Vec<u8> {
        let size = [job.workers, job.servers].map(|count| u32::try_from(count).unwrap());
        let mut out: Vec<u8> = size.iter().flat_map(|count| count.to_le_bytes()).collect();
        text(&mut out, "reader@mallory");
        out.extend_from_slice(&u32::try_from(self.terms.len()).unwrap().to_le_bytes());
        for (name, value) in &self.terms {
            text(&mut out, name);
            text(&mut out, value);
        }
        // Without terms and features.
        let mut book = self.epoch.to_le_bytes().to_vec();
        book.extend_from_slice(&[0; 4 + 8]);
        book.extend_from_slice(&u32::try_from(self.members.len()).unwrap().to_le_bytes());
        for (role, rank, state, address) in &self.members {
            let mut member = vec![*role];
            member.extend_from_slice(&rank.to_le_bytes());
            member.extend_from_slice(&7u64.to_le_bytes());
            member.push(*state);
            text(&mut member, address);
            member.extend_from_slice(&0u64.to_le_bytes());
            sized(&mut book, &member);
        }
        sized(&mut out, &book);
        // It has come to no barrier, has passed some, and is not done.
        out.extend_from_slice(&0u64.to_le_bytes());
        out.extend_from_slice(&self.passed.to_le_bytes());
        out.push(if self.works { 0 } else { ONLY_READS });
        // No features.
        out.extend_from_slice(&0u64.to_le_bytes());
        out
    }
}

/// Says hello to the scheduler with the credential of a reader.
pub fn claim(session: &mut Session, job: &Job, claims: &Claims) {
    let rank = claims.rank.unwrap_or(u32::MAX);
    let frame = Frame::hello(&job_name(job), WORKER, rank, (0, 0), "reader@mallory");
    let frame = Frame { payload: claims.payload(job), ..frame };
    session.put(&frame.bytes()).unwrap();
}

#[test]
fn a_reader_that_calls_a_server_lost_ends_no_job() {
    with_both("forged-lost", |access| {
        let job = Job::new("train", 2, 1).told(ROUNDS, 60).told(PAUSE_MS, 20);
        let mut running = start(&job, |job, role| access.give(job, role));
        running.hear("sum 5 ");
        let mut session = access.enter(&job.root);
        for epoch in [1, 9, u32::MAX] {
            let members = vec![(SERVER, 0, LOST, "127.0.0.1:1".into())];
            claim(&mut session, &job, &Claims { epoch, members, ..Claims::default() });
        }
        running.end_well();
        session.close();
    });
}

#[test]
fn a_reader_that_comes_first_leads_no_worker_to_its_own_address() {
    with_both("forged-trap", |access| {
        let job = Job::new("train", 2, 1).told(ROUNDS, 5);
        let scheduler = access.give(&job, "scheduler").start_scheduler();
        let mut session = access.enter(&job.root);
        let trap = TcpListener::bind("127.0.0.1:0").unwrap();
        trap.set_nonblocking(true).unwrap();
        let members = vec![(SERVER, 0, 0, trap.local_addr().unwrap().to_string())];
        claim(
            &mut session,
            &job,
            &Claims { rank: Some(1), epoch: 1, members, ..Claims::default() },
        );
        let server = access.give(&job, "server").start_server(0);
        let mut all = vec![scheduler, server, access.give(&job, "worker").start_worker(0)];
        let place = Claims::place(1);
        let ended = soon(LIMIT, || {
            claim(&mut session, &job, &place);
            all[2].has_ended()
        });
        assert!(ended, "the worker does not end");
        session.close();
        Running { all, job }.end_well();
        assert!(trap.accept().is_err(), "a worker has called the reader's address");
    });
}

#[test]
fn a_reader_that_claims_to_have_passed_opens_no_barrier() {
    with_both("forged-passed", |access| {
        let job = Job::new("barriers", 3, 1).told(ROUNDS, 200);
        let scheduler = access.give(&job, "scheduler").start_scheduler();
        let mut all = vec![scheduler, access.give(&job, "server").start_server(0)];
        let worker = access.give(&job, "worker");
        all.extend([worker.start_worker(0), worker.start_worker(1)]);
        let mut session = access.enter(&job.root);
        let passes = Claims { rank: Some(2), passed: 1 << 40, ..Claims::default() };
        let hello = |session: &mut Session| claim(session, &job, &passes);
        let hears = |session: &mut Session, process: &mut Process, word: &str| {
            assert!(soon(LIMIT, || {
                hello(session);
                process.count(word) > 0
            }));
        };
        hears(&mut session, &mut all[2], "barrier 5");
        all[3].signal("STOP");
        std::thread::sleep(Duration::from_millis(200));
        let before = all[2].count("barrier ");
        for _ in 0..10 {
            hello(&mut session);
            std::thread::sleep(Duration::from_millis(100));
        }
        let passed = all[2].count("barrier ") - before;
        all[3].signal("CONT");
        assert!(passed <= 1, "worker 0 passed {passed} barriers to which worker 1 did not come");
        hears(&mut session, &mut all[3], "barrier 150");
        let workers = all.split_off(2);
        for worker in workers {
            let end = worker.end(LIMIT);
            assert!(end.status == Some(0), "{end:?}");
        }
        session.close();
        Running { all, job }.end_well();
    });
}

#[test]
fn a_reader_that_comes_first_does_not_choose_the_type_of_the_store() {
    with_both("forged-terms", |access| {
        let job = Job::new("train", 3, 1).told(ROUNDS, 5).told(PAUSE_MS, 100);
        let scheduler = access.give(&job, "scheduler").start_scheduler();
        let mut all = vec![scheduler, access.give(&job, "server").start_server(0)];
        let mut session = access.enter(&job.root);
        // Without rounds, on_worker_loss=fail, and other numbers.
        let terms = vec![
            ("type", "dist_async"),
            ("staleness", "none"),
            ("on_worker_loss", "fail"),
            ("peer_timeout_ms", "3000"),
            ("slice_bytes", "1048576"),
            ("hold_bytes", "1073741824"),
            ("max_rounds_ahead", "1"),
        ];
        claim(&mut session, &job, &Claims { rank: Some(2), terms, ..Claims::default() });
        let worker = access.give(&job, "worker");
        all.extend([worker.start_worker(0), worker.start_worker(1)]);
        let place = Claims::place(2);
        for worker in &mut all[2..] {
            let ended = soon(LIMIT, || {
                claim(&mut session, &job, &place);
                worker.has_ended()
            });
            assert!(ended, "{} does not end", worker.name);
        }
        session.close();
        Running { all, job }.end_well();
    });
}

/// A process that pushes would have to have the credential of a worker.
#[test]
fn a_reader_that_calls_itself_a_worker_takes_no_place() {
    with_both("forged-works", |access| {
        let job = Job::new("train", 2, 1).told(ROUNDS, 5);
        let mut all = vec![access.give(&job, "scheduler").start_scheduler()];
        let mut session = access.enter(&job.root);
        for rank in [None, Some(0), Some(1)] {
            claim(&mut session, &job, &Claims { rank, works: true, ..Claims::default() });
        }
        // What comes later in the same session is behind it.
        std::thread::sleep(Duration::from_millis(500));
        all.push(access.give(&job, "server").start_server(0));
        let worker = access.give(&job, "worker");
        all.extend([worker.start_worker(0), worker.start_worker(1)]);
        let ends = Running { all, job }.end(LIMIT);
        assert!(ends.iter().all(|end| end.status == Some(0)), "{ends:?}");
        let logged =
            "reader at reader@mallory: dropped a frame Hello as worker: a reader pushes nothing";
        assert!(ends[0].text().contains(logged), "{:?}", ends[0]);
        session.close();
    });
}
