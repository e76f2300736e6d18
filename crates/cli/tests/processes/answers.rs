//! Listeners answer every Call as docs/internals/wire.md has it, and go on.

use std::io::Write;
use std::net::TcpStream;

use super::attacker::{Frame, OFFER, call};
use super::common::wait::free_address;
use super::greeting::{
    Answer, Call, GO_ON, MALFORMED, NOT_ALLOWED, OTHER_TOKEN, OTHER_VERSION, WANTS_NO_TOKEN,
    WANTS_TOKEN,
};
use super::hostile::job_name;
use super::hostile_tls::client_hello;
use super::job::{Job, LIMIT, Running, Turn, soon};
use super::keys::Keys;
use super::program::ROUNDS;
use super::session::{FRAMES, Login, Session, client};

/// The kind of a frame that answers a Look.
const SEEN: u8 = 30;

/// The status that a listener sends for a Call with a password; None if it ends the connection without one.
fn status(to: &str, call: &Call, password: &str) -> Option<u8> {
    let login = Login { password: Some(password.into()), ..Login::default() };
    match Session::greet(to, call, &login) {
        Ok(session) => {
            session.close();
            Some(GO_ON)
        }
        Err(refusal) => refusal.status(),
    }
}

/// The status of the Answer to bytes that are no Call.
fn status_of_bytes(to: &str, bytes: &[u8]) -> Option<u8> {
    let mut stream = call(to, bytes)?;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    Answer::receive(&mut stream).ok().map(|(answer, _)| answer.status)
}

/// A job whose server listens at `bind`, without its workers.
fn listening(job: &Job, bind: &str) -> Running {
    let all = vec![job.start_scheduler(), job.clone().with("bind", bind).start_server(0)];
    for to in [job.root.as_str(), bind] {
        assert!(soon(LIMIT, || TcpStream::connect(to).is_ok()), "{to}");
    }
    Running { all, job: job.clone() }
}

fn ends_well(mut running: Running) {
    let job = running.job.clone();
    running.all.extend((0..job.workers).map(|rank| job.start_worker(rank)));
    running.end_well();
}

#[test]
fn calls_are_answered_by_their_names_identities_and_versions() {
    let _turn = Turn::take();
    let keys = Keys::new("answers");
    let bind = free_address();
    let job = keys.tokened(&Job::new("train", 2, 1).told(ROUNDS, 3), "job");
    let running = listening(&job, &bind);
    let secret = std::fs::read_to_string(keys.path("job.token")).unwrap();
    let password = |identity: &str| super::greeting::derived(secret.trim(), identity);
    let is = |to: &str, call: &Call, password: &str, expected: &[u8]| {
        let status = status(to, call, password);
        let about = format!("{:?} {:?} at {to}", call.identity, call.name);
        assert!(status.is_some_and(|it| expected.contains(&it)), "{about}: {status:?}");
    };
    let own = password("worker.1");
    let good = Call::new("worker.1", "mallory", true);
    for to in [&job.root, &bind] {
        is(to, &good, &own, &[GO_ON]);
        is(to, &Call { more: vec![7; 900], ..good.clone() }, &own, &[GO_ON]);
        is(to, &Call { version: 2, ..good.clone() }, &own, &[OTHER_VERSION]);
        is(to, &Call { has_token: false, ..good.clone() }, &own, &[WANTS_TOKEN]);
        // Longer than any greeting: it ends without an Answer.
        assert_eq!(status(to, &Call { more: vec![7; 1_000], ..good.clone() }, &own), None);
        for name in ["", "a@b", "a/b", "a b", "caf\u{e9}", "a\tb", &"a".repeat(256)] {
            is(to, &Call { name: name.into(), ..good.clone() }, &own, &[MALFORMED]);
        }
        is(to, &Call { name: "a".repeat(255), ..good.clone() }, &own, &[GO_ON]);
        // The password of its kind is as good, that of another process is not.
        is(to, &good, &password("worker"), &[GO_ON]);
        is(to, &good, &password("worker.0"), &[OTHER_TOKEN]);
        is(to, &Call::new("worker", "mallory", true), &own, &[OTHER_TOKEN]);
        for identity in ["worker.0", "worker", "reader.1", "reader"] {
            is(to, &Call::new(identity, "mallory", true), &password(identity), &[GO_ON]);
        }
        for (identity, name) in [
            ("worker.2", "mallory"),
            ("reader.2", "mallory"),
            ("server.1", "10.0.0.2:7"),
            ("scheduler", "10.0.0.2:7"),
        ] {
            is(to, &Call::new(identity, name, true), &password(identity), &[NOT_ALLOWED]);
        }
        for (identity, name) in [
            ("worker.1", "10.0.0.2:7"),
            ("reader", "10.0.0.2:7"),
            ("server.0", "mallory"),
            ("boss", "mallory"),
            ("", "mallory"),
        ] {
            let call = Call::new(identity, name, true);
            is(to, &call, &password(identity), &[NOT_ALLOWED, MALFORMED]);
        }
    }
    // Servers dial the scheduler alone.
    let server = Call::new("server.0", "10.0.0.2:7", true);
    is(&job.root, &server, &password("server.0"), &[GO_ON]);
    is(&bind, &server, &password("server.0"), &[NOT_ALLOWED]);
    ends_well(running);
}

#[test]
fn what_is_no_call_is_answered_where_an_answer_can_be_read() {
    let _turn = Turn::take();
    let (keys, bind) = (Keys::new("no-call"), free_address());
    let job = Job::new("train", 1, 1).told(ROUNDS, 3);
    let running = listening(&job, &bind);
    let whole = Call::new("", "mallory", false).bytes();
    let mut short = whole.clone();
    short[6] -= 1;
    short.pop();
    for to in [&job.root, &bind] {
        // A name whose length is beyond the message; TLS where there is none.
        assert_eq!(status_of_bytes(to, &short), Some(MALFORMED));
        assert_eq!(status_of_bytes(to, &client_hello(&client(&keys, None))), Some(MALFORMED));
        let with_token = Call::new("", "mallory", true);
        assert_eq!(status(to, &with_token, "password"), Some(WANTS_NO_TOKEN));
        let mut stream = call(to, &whole).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let (answer, _) = Answer::receive(&mut stream).unwrap();
        assert_eq!((answer.status, answer.wants_token), (GO_ON, false));
        assert!(answer.identity.is_empty() && answer.reason.is_empty(), "{answer:?}");
    }
    ends_well(running);
}

/// A greeting that arrives byte by byte, and messages of a later version before one that is answered.
#[test]
fn pieces_are_put_together_and_messages_of_other_kinds_are_skipped() {
    let _turn = Turn::take();
    let bind = free_address();
    let job = Job::new("train", 1, 1).told(ROUNDS, 3);
    let running = listening(&job, &bind);
    for to in [&job.root, &bind] {
        let mut stream = call(to, &[]).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        for byte in Call::new("", "pieces", false).bytes() {
            stream.write_all(&[byte]).unwrap();
        }
        assert_eq!(Answer::receive(&mut stream).unwrap().0.status, GO_ON);
        let mut session = Session::open(to, "mallory", &Login::default()).unwrap();
        session.send(7, &[0x5a; 5_000]).unwrap();
        session.send(u16::MAX, &[]).unwrap();
        let look = Frame::look(&job_name(&job), "mallory", 3_000).bytes();
        let len = u32::try_from(look.len()).unwrap();
        let head = [&len.to_le_bytes()[..], &FRAMES.to_le_bytes(), &[0xff, 0xff]].concat();
        session.write(&[head, look].concat()).unwrap();
        let (mut kind, mut frame) = session.receive().unwrap();
        if kind == OFFER {
            (kind, frame) = session.receive().unwrap();
        }
        assert_eq!((kind, &frame[..4], frame[6]), (FRAMES, &b"KVST"[..], SEEN), "{to}");
        assert!(frame.len() > 3_000, "{}", frame.len());
        session.close();
    }
    ends_well(running);
}
