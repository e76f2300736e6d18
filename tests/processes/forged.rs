//! Hellos that a reader forges: its credential lets it pull, and nothing that it says of the job, of
//! others or of barriers counts.

use std::net::TcpListener;
use std::time::Duration;

use zenoh::{Session, Wait};

use super::attacker::{Frame, WORKER, call, session};
use super::hostile::{job_name, login};
use super::job::{Job, LIMIT, Process, Running, Turn, soon};
use super::keys::Keys;
use super::program::{PAUSE_MS, ROUNDS};

/// What stands in a hello beside the address.
#[derive(Default)]
struct Claims {
    rank: Option<u32>,
    terms: Vec<u8>,
    epoch: u32,
    /// Role, rank, state and address of members.
    members: Vec<(u8, u32, u8, String)>,
    passed: u64,
}

const SERVER: u8 = 2;
const LOST: u8 = 1;

/// A token for a job, and one for readers.
fn keys(name: &str) -> Keys {
    let keys = Keys::new(name);
    keys.make(&["token", "--for", "reader"]);
    keys
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&u16::try_from(text.len()).unwrap().to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

impl Claims {
    fn payload(&self, job: &Job) -> Vec<u8> {
        let size = [job.workers, job.servers].map(|count| u32::try_from(count).unwrap());
        let mut out: Vec<u8> = size.iter().flat_map(|count| count.to_le_bytes()).collect();
        text(&mut out, "reader@mallory");
        let no_terms = vec![0];
        out.extend_from_slice(if self.terms.is_empty() { &no_terms } else { &self.terms });
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&no_terms);
        out.extend_from_slice(&u32::try_from(self.members.len()).unwrap().to_le_bytes());
        for (role, rank, state, address) in &self.members {
            out.push(*role);
            out.extend_from_slice(&rank.to_le_bytes());
            out.extend_from_slice(&7u64.to_le_bytes());
            out.push(*state);
            text(&mut out, address);
        }
        // It has come to no barrier, has passed some, and is not done.
        out.extend_from_slice(&0u64.to_le_bytes());
        out.extend_from_slice(&self.passed.to_le_bytes());
        out.push(0);
        out
    }
}

/// Says hello to the scheduler with the credential of a reader.
fn claim(session: &Session, job: &Job, claims: &Claims) {
    let rank = claims.rank.unwrap_or(u32::MAX);
    let frame = Frame::hello(&job_name(job), WORKER, rank, (0, 0), "reader@mallory");
    let frame = Frame { payload: claims.payload(job), ..frame };
    session.put("kvstore/-/scheduler/reader/mallory", frame.bytes()).wait().unwrap();
}

fn enter(keys: &Keys, job: &Job) -> Session {
    assert!(soon(LIMIT, || call(&job.root, &[]).is_some()));
    session("tcp", &job.root, &login(keys, "reader")).unwrap()
}

#[test]
fn a_reader_that_calls_a_server_lost_ends_no_job() {
    let _turn = Turn::take();
    let keys = keys("forged-lost");
    let job = keys.tokened(&Job::new("train", 2, 1), "job").told(ROUNDS, 60).told(PAUSE_MS, 20);
    let mut running = job.start();
    running.hear("sum 5 ");
    let session = enter(&keys, &job);
    for epoch in [1, 9, u32::MAX] {
        let members = vec![(SERVER, 0, LOST, "127.0.0.1:1".into())];
        claim(&session, &job, &Claims { epoch, members, ..Claims::default() });
    }
    running.end_well();
    session.close().wait().unwrap();
}

#[test]
fn a_reader_that_comes_first_leads_no_worker_to_its_own_address() {
    let _turn = Turn::take();
    let keys = keys("forged-address");
    let job = keys.tokened(&Job::new("train", 2, 1), "job").told(ROUNDS, 5);
    let scheduler = job.start_scheduler();
    let session = enter(&keys, &job);
    let trap = TcpListener::bind("127.0.0.1:0").unwrap();
    trap.set_nonblocking(true).unwrap();
    let members = vec![(SERVER, 0, 0, trap.local_addr().unwrap().to_string())];
    claim(&session, &job, &Claims { rank: Some(1), epoch: 1, members, ..Claims::default() });
    let mut all = vec![scheduler, job.start_server(0), job.start_worker(0)];
    let place = Claims { rank: Some(1), ..Claims::default() };
    let ended = soon(LIMIT, || {
        claim(&session, &job, &place);
        all[2].has_ended()
    });
    assert!(ended, "the worker does not end");
    session.close().wait().unwrap();
    Running { all, job }.end_well();
    assert!(trap.accept().is_err(), "a worker has called the reader's address");
}

#[test]
fn a_reader_that_claims_to_have_passed_opens_no_barrier() {
    let _turn = Turn::take();
    let keys = keys("forged-barrier");
    let job = keys.tokened(&Job::new("barriers", 3, 1), "job").told(ROUNDS, 200);
    let mut all = vec![job.start_scheduler(), job.start_server(0)];
    all.extend([job.start_worker(0), job.start_worker(1)]);
    let session = enter(&keys, &job);
    let passes = Claims { rank: Some(2), passed: 1 << 40, ..Claims::default() };
    let hello = || claim(&session, &job, &passes);
    let hears = |process: &mut Process, word: &str| {
        assert!(soon(LIMIT, || {
            hello();
            process.count(word) > 0
        }));
    };
    hears(&mut all[2], "barrier 5");
    all[3].signal("STOP");
    std::thread::sleep(Duration::from_millis(200));
    let before = all[2].count("barrier ");
    for _ in 0..10 {
        hello();
        std::thread::sleep(Duration::from_millis(100));
    }
    let passed = all[2].count("barrier ") - before;
    all[3].signal("CONT");
    assert!(passed <= 1, "worker 0 passed {passed} barriers to which worker 1 did not come");
    hears(&mut all[3], "barrier 150");
    let workers = all.split_off(2);
    for worker in workers {
        let end = worker.end(LIMIT);
        assert!(end.status == Some(0), "{end:?}");
    }
    session.close().wait().unwrap();
    Running { all, job }.end_well();
}

#[test]
fn a_reader_that_comes_first_does_not_choose_the_type_of_the_store() {
    let _turn = Turn::take();
    let keys = keys("forged-terms");
    let job = keys.tokened(&Job::new("train", 3, 1), "job").told(ROUNDS, 5).told(PAUSE_MS, 100);
    let mut all = vec![job.start_scheduler(), job.start_server(0)];
    let session = enter(&keys, &job);
    // Without rounds, on_worker_loss=fail, and other numbers.
    let mut terms = vec![2, 0];
    [0u64, 3_000, 1 << 20, 1 << 30, 1].iter().for_each(|it| terms.extend(it.to_le_bytes()));
    claim(&session, &job, &Claims { rank: Some(2), terms, ..Claims::default() });
    all.extend([job.start_worker(0), job.start_worker(1)]);
    let place = Claims { rank: Some(2), ..Claims::default() };
    for worker in &mut all[2..] {
        let ended = soon(LIMIT, || {
            claim(&session, &job, &place);
            worker.has_ended()
        });
        assert!(ended, "{} does not end", worker.name);
    }
    session.close().wait().unwrap();
    Running { all, job }.end_well();
}
