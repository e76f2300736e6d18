//! Greetings between a caller and a listener, byte by byte, and altered ones.

use super::*;
use crate::transport::tcp::greeting::Direction;

const SECRET: &str = "a secret of the job";

fn of(identity: &str, secret: &str) -> Credentials {
    Credentials::of_token(identity, secret)
}

fn caller(credentials: Option<&Credentials>) -> Option<CallerGreeting> {
    let seals = credentials.is_some_and(Credentials::seals);
    CallerGreeting::new(
        credentials,
        "h",
        CredentialKind::Server,
        Lane::first(Direction::Both),
        seals,
    )
}

/// Greets; what the listener knows of the caller, or why either of them ends the connection.
fn greet(
    caller: Option<&Credentials>,
    name: &str,
    listener: Option<&Credentials>,
) -> Result<String, (Option<Status>, Option<Failure>)> {
    greet_kind(caller, name, listener, CredentialKind::Server)
}

/// The same with a listener of the kind that is wanted.
fn greet_kind(
    caller: Option<&Credentials>,
    name: &str,
    listener: Option<&Credentials>,
    wanted: CredentialKind,
) -> Result<String, (Option<Status>, Option<Failure>)> {
    let seals = caller.is_some_and(Credentials::seals);
    let mut calls =
        CallerGreeting::new(caller, name, wanted, Lane::first(Direction::Both), seals).unwrap();
    let mut listens = ListenerGreeting::default();
    let policy =
        AdmissionPolicy { credentials: listener, certified: Certified::Plain, is_full: &|_| false };
    let (mut to_listener, mut to_caller) = (calls.call().to_vec(), Vec::new());
    let (mut at_listener, mut at_caller, mut known) = (Vec::new(), Vec::new(), None);
    let mut is_over = false;
    loop {
        let mut moved = false;
        for byte in std::mem::take(&mut to_listener) {
            moved = true;
            at_listener.push(byte);
            match listens.receive(&policy, &mut at_listener, &mut to_caller) {
                Ok(caller) => known = known.or(caller.map(|caller| caller.from)),
                Err(status) => {
                    at_caller.append(&mut to_caller);
                    let failure = calls.receive(&mut at_caller, &mut to_listener).err();
                    return Err((Some(status), failure));
                }
            }
        }
        for byte in std::mem::take(&mut to_caller) {
            moved = true;
            at_caller.push(byte);
            assert!(!is_over, "bytes behind the greeting");
            match calls.receive(&mut at_caller, &mut to_listener) {
                Ok(over) => is_over = over,
                Err(failure) => return Err((None, Some(failure))),
            }
        }
        if !moved {
            assert!(is_over);
            assert_eq!(calls.listener(), listener.map(|credentials| credentials.identity));
            assert!(at_listener.is_empty() && at_caller.is_empty());
            return Ok(known.expect("both sides end at the same time"));
        }
    }
}

#[test]
fn a_process_with_a_credential_of_the_job_is_known_by_it() {
    let server = of("server.0", SECRET);
    for (who, name, from) in [
        ("worker.1", "host.1.a", "worker.1@host.1.a"),
        ("worker", "host.1.a", "worker@host.1.a"),
        ("reader.0", "host.2.b", "reader.0@host.2.b"),
    ] {
        assert_eq!(greet(Some(&of(who, SECRET)), name, Some(&server)), Ok(from.into()));
    }
    assert_eq!(greet(None, "host.1.a", None), Ok("host.1.a".into()));
}

#[test]
fn a_process_without_one_is_told_why_it_is_refused() {
    let server = of("server.0", SECRET);
    let refused = |status| Err((Some(status), Some(Failure::Refused(status))));
    let worker = of("worker.1", SECRET);
    assert_eq!(greet(None, "h", Some(&server)), refused(Status::WantsToken));
    assert_eq!(greet(Some(&worker), "h", None), refused(Status::WantsNoToken));
    let other = of("worker.1", "another secret of a job");
    assert_eq!(greet(Some(&other), "h", Some(&server)), refused(Status::OtherToken));
    // A rank that the job has not, a process that does not call servers, and names of another kind.
    for who in ["worker.2", "server.0", "scheduler"] {
        let name = if who.starts_with("worker") { "h" } else { "10.0.0.1:7" };
        assert_eq!(greet(Some(&of(who, SECRET)), name, Some(&server)), refused(Status::NotAllowed));
    }
    // A worker has no port for a server.
    assert_eq!(greet(Some(&worker), "1.2.3.4:5", Some(&server)), refused(Status::NotAllowed));
}

#[test]
fn workers_call_each_other_by_their_addresses() {
    let refused = |status| Err((Some(status), Some(Failure::Refused(status))));
    let [one, other] = ["worker.0", "worker.1"].map(|who| of(who, SECRET));
    let calls = |who: &Credentials, name: &str| {
        greet_kind(Some(who), name, Some(&other), CredentialKind::Worker)
    };
    assert!(calls(&one, "1.2.3.4:5").is_ok());
    assert_eq!(calls(&one, "host.1.a"), refused(Status::NotAllowed));
    for who in ["reader.1", "server.0", "scheduler", "worker.2"] {
        assert_eq!(calls(&of(who, SECRET), "1.2.3.4:5"), refused(Status::NotAllowed), "{who}");
    }
    let stranger = of("worker.0", "another secret of a job");
    assert_eq!(calls(&stranger, "1.2.3.4:5"), refused(Status::OtherToken));
}

#[test]
fn where_ranks_need_tokens_the_one_of_all_workers_is_not_enough() {
    let job = |identity| of(identity, SECRET);
    let derived = |identity: &str, of: &str| {
        let token = crate::credentials::derived_token(SECRET, of);
        Credentials::of_token(identity, &token)
    };
    let server = job("server.0").by_rank();
    let own = derived("worker.1", "worker.1");
    assert_eq!(greet(Some(&own), "h", Some(&server)), Ok("worker.1@h".into()));
    let refused = |status| Err((Some(status), Some(Failure::Refused(status))));
    let any = derived("worker", "worker");
    assert_eq!(greet(Some(&any), "h", Some(&server)), refused(Status::NotAllowed));
    assert_eq!(greet(Some(&any), "h", Some(&job("server.0"))), Ok("worker@h".into()));
    // A certificate of the rank beside a token of all workers.
    let both = derived("worker.1", "worker");
    assert_eq!(greet(Some(&both), "h", Some(&server)), refused(Status::OtherToken));
    assert_eq!(greet(Some(&both), "h", Some(&job("server.0"))), Ok("worker.1@h".into()));
    // Servers have the token of the job.
    let scheduler = job("scheduler").by_rank();
    let calls = CallerGreeting::new(
        Some(&job("server")),
        "10.0.0.1:7",
        CredentialKind::Scheduler,
        Lane::first(Direction::Both),
        false,
    );
    let policy = AdmissionPolicy {
        credentials: Some(&scheduler),
        certified: Certified::Plain,
        is_full: &|_| false,
    };
    let mut call = calls.unwrap().call().to_vec();
    assert_eq!(ListenerGreeting::default().receive(&policy, &mut call, &mut Vec::new()), Ok(None));
}

#[test]
fn a_listener_of_another_kind_is_refused() {
    let (worker, scheduler) = (of("worker.1", SECRET), of("scheduler", SECRET));
    let failure = Failure::OtherKind(Some(scheduler.identity), CredentialKind::Server);
    assert_eq!(greet(Some(&worker), "h", Some(&scheduler)), Err((None, Some(failure))));
}

/// Both messages and the proof of a greeting.
fn recorded(
    calling: &Credentials,
    policy: &AdmissionPolicy<'_>,
) -> (CallerGreeting, ListenerGreeting, Vec<u8>) {
    let mut calls = caller(Some(calling)).unwrap();
    let (mut listens, mut answer, mut proof) =
        (ListenerGreeting::default(), Vec::new(), Vec::new());
    listens.receive(policy, &mut calls.call().to_vec(), &mut answer).unwrap();
    assert_eq!(calls.receive(&mut answer, &mut proof), Ok(false));
    (calls, listens, proof)
}

#[test]
fn a_recorded_or_altered_proof_admits_no_process() {
    let (worker, server) = (of("worker.1", SECRET), of("server.0", SECRET));
    let policy = AdmissionPolicy {
        credentials: Some(&server),
        certified: Certified::Plain,
        is_full: &|_| false,
    };
    let (_, _, old) = recorded(&worker, &policy);
    let (_, mut listens, mut proof) = recorded(&worker, &policy);
    let mut verdict = Vec::new();
    assert_eq!(listens.receive(&policy, &mut old.clone(), &mut verdict), Err(Status::OtherToken));
    assert_eq!((verdict[0], &verdict[1..]), (Status::OtherToken as u8, &[0; 32][..]));
    for at in 0..proof.len() {
        proof[at] ^= 1;
        let refused = listens.receive(&policy, &mut proof.clone(), &mut Vec::new());
        assert_eq!(refused, Err(Status::OtherToken));
        proof[at] ^= 1;
    }
    assert!(listens.receive(&policy, &mut proof, &mut Vec::new()).unwrap().is_some());
}

#[test]
fn a_listener_that_takes_any_token_is_recognized() {
    let (worker, server) = (of("worker.1", SECRET), of("server.0", SECRET));
    let policy = AdmissionPolicy {
        credentials: Some(&server),
        certified: Certified::Plain,
        is_full: &|_| false,
    };
    let (mut calls, mut listens, mut proof) = recorded(&worker, &policy);
    // It sends back what it has got, or makes something up.
    for made_up in [proof.clone(), vec![0; 32]] {
        let mut answer = [&[0][..], &made_up].concat();
        let failure = calls.receive(&mut answer, &mut Vec::new());
        assert_eq!(failure, Err(Failure::NotProven));
    }
    let mut verdict = Vec::new();
    listens.receive(&policy, &mut proof, &mut verdict).unwrap();
    assert_eq!(calls.receive(&mut verdict, &mut Vec::new()), Ok(true));
}

#[test]
fn a_listener_that_asks_for_no_token_is_no_listener_of_a_job_with_one() {
    let worker = of("worker.1", SECRET);
    let mut calls = caller(Some(&worker)).unwrap();
    let identity = Identity::parse("server");
    let (status, random) = (Status::Welcome, [3; 32]);
    let answer = Answer { status, wants_token: false, random, identity, share: None };
    let failure = calls.receive(&mut answer.encode(), &mut Vec::new());
    assert_eq!(failure, Err(Failure::Refused(Status::WantsNoToken)));
}

#[test]
fn the_identity_is_that_of_the_certificate() {
    let server = of("server.0", SECRET);
    for (certified, is_refused) in
        [("worker.1", false), ("worker.0", true), ("worker", true), ("a name", true)]
    {
        let certified = Certified::As(Identity::parse(certified));
        let policy = AdmissionPolicy { credentials: Some(&server), certified, is_full: &|_| false };
        let calls = caller(Some(&of("worker.1", SECRET)));
        let mut call = calls.unwrap().call().to_vec();
        let answer = ListenerGreeting::default().receive(&policy, &mut call, &mut Vec::new());
        assert_eq!(answer, if is_refused { Err(Status::NotAllowed) } else { Ok(None) });
    }
}

#[test]
fn noise_gets_no_answer_and_a_full_listener_says_so() {
    let policy =
        AdmissionPolicy { credentials: None, certified: Certified::Plain, is_full: &|_| true };
    let mut out = Vec::new();
    let noise = ListenerGreeting::default().receive(&policy, &mut b"GET / HTTP".to_vec(), &mut out);
    assert_eq!((noise, out.is_empty()), (Err(Status::Malformed), true));
    let calls = caller(None).unwrap();
    let full = ListenerGreeting::default().receive(&policy, &mut calls.call().to_vec(), &mut out);
    assert_eq!(full, Err(Status::Full));
    assert_eq!(Answer::decode(&out).unwrap().status, Status::Full);
}

fn sealed_by(halves: &mut RecordHalves, bytes: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    halves.0.seal(&[std::io::IoSlice::new(bytes)], &mut sealed).unwrap();
    sealed
}

fn opened_by(halves: &mut RecordHalves, mut sealed: Vec<u8>) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    halves.1.open(&mut sealed, &mut plain).ok().map(|_| plain)
}

/// Greets, with a man in the middle who may alter the call and the answer; both sides, and what they say.
fn seal_with(
    caller_is: &Credentials,
    listener_is: &Credentials,
    alter: impl Fn(&mut Vec<u8>, &mut Vec<u8>, bool),
) -> Result<(RecordHalves, RecordHalves), (Option<Status>, Option<Failure>)> {
    let policy = AdmissionPolicy {
        credentials: Some(listener_is),
        certified: Certified::Plain,
        is_full: &|_| false,
    };
    let (mut calls, mut listens) = (caller(Some(caller_is)).unwrap(), ListenerGreeting::default());
    let (mut call, mut answer, mut proof, mut verdict) =
        (calls.call().to_vec(), Vec::new(), Vec::new(), Vec::new());
    alter(&mut call, &mut answer, true);
    listens.receive(&policy, &mut call, &mut answer).map_err(|status| (Some(status), None))?;
    alter(&mut call, &mut answer, false);
    calls.receive(&mut answer, &mut proof).map_err(|failure| (None, Some(failure)))?;
    let admitted = listens.receive(&policy, &mut proof, &mut verdict);
    admitted.map_err(|status| (Some(status), None))?;
    // Records may follow the verdict at once.
    let early = listens.records.as_mut().map(|halves| sealed_by(halves, b"early"));
    verdict.extend(early.iter().flatten());
    let over = calls.receive(&mut verdict, &mut Vec::new());
    assert!(over.map_err(|failure| (None, Some(failure)))?);
    let mut halves = calls.records.expect("records");
    assert_eq!(opened_by(&mut halves, verdict), Some(b"early".to_vec()));
    Ok((halves, listens.records.expect("records")))
}

#[test]
fn a_caller_that_asks_for_records_gets_them_and_both_sides_have_the_same_keys() {
    let server = of("server.0", SECRET);
    for (worker, server) in [
        (of("worker.1", SECRET).sealing(), of("server.0", SECRET)),
        (of("worker.1", SECRET).sealing(), of("server.0", SECRET).sealing()),
    ] {
        let (mut calls, mut listens) = seal_with(&worker, &server, |_, _, _| ()).unwrap();
        let sealed = sealed_by(&mut calls, b"forth");
        assert_ne!(sealed.windows(5).position(|bytes| bytes == b"forth"), Some(5), "it is hidden");
        assert_eq!(opened_by(&mut listens, sealed), Some(b"forth".to_vec()));
        let sealed = sealed_by(&mut listens, b"back");
        assert_eq!(opened_by(&mut calls, sealed), Some(b"back".to_vec()));
        // Another connection of the same two has other keys.
        let (mut again, _) = seal_with(&worker, &server, |_, _, _| ()).unwrap();
        assert_eq!(opened_by(&mut listens, sealed_by(&mut again, b"forth")), None);
    }
    // Without TLS, a listener with the option takes no caller without it.
    let refused = |status| Err((Some(status), Some(Failure::Refused(status))));
    let plain = of("worker.1", SECRET);
    let sealing = of("server.0", SECRET).sealing();
    assert_eq!(greet(Some(&plain), "h", Some(&sealing)), refused(Status::WantsRecords));
    assert_eq!(greet(Some(&plain), "h", Some(&server)), Ok("worker.1@h".into()));
}

#[test]
fn a_man_in_the_middle_can_neither_take_the_records_away_nor_put_his_keys_in() {
    let (worker, server) = (of("worker.1", SECRET).sealing(), of("server.0", SECRET));
    let flags_of_call = 8;
    let without = |call: &mut Vec<u8>, _: &mut Vec<u8>, is_call: bool| {
        if is_call {
            call[flags_of_call] &= !8;
        }
    };
    // The answer has no share then.
    assert!(matches!(seal_with(&worker, &server, without), Err((None, Some(Failure::NotSealed)))));
    let own_share_in_call = |call: &mut Vec<u8>, _: &mut Vec<u8>, is_call: bool| {
        if is_call {
            let at = call.len() - 32;
            call[at..].copy_from_slice(KeyShare::new().unwrap().public());
        }
    };
    assert!(matches!(
        seal_with(&worker, &server, own_share_in_call),
        Err((Some(Status::OtherToken), None))
    ));
    let own_share_in_answer = |_: &mut Vec<u8>, answer: &mut Vec<u8>, is_call: bool| {
        if !is_call {
            let at = answer.len() - 32;
            answer[at..].copy_from_slice(KeyShare::new().unwrap().public());
        }
    };
    assert!(matches!(
        seal_with(&worker, &server, own_share_in_answer),
        Err((Some(Status::OtherToken), None))
    ));
}
