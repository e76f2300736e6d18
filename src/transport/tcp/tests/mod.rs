//! Both ends of connections in one process, on the loopback interface.

mod lanes;
mod large;
mod polling;
mod reconnection;
mod records;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::TcpTransport;
use super::admission::CallerGreeting;
use super::framing::{MOST_BYTES, MessageKind, head};
use super::greeting::{ANSWER, Direction, Lane, take};
use crate::credentials::{CredentialKind, Credentials};
use crate::transport::mail::{Heard, Mail, content, fill, wait_for};
use crate::transport::{BlockingSender, DialPolicy, Inbox, Transport, TransportConfig, tests};

fn place(listen: Option<&str>) -> TransportConfig {
    let calls = if listen.is_some() { DialPolicy::Nobody } else { DialPolicy::Everybody };
    let place = tests::place(listen, calls);
    TransportConfig { lease_ms: 1_000, shm: false, most_connections: 200, ..place }
}

fn with_token(place: TransportConfig, identity: &str, secret: &str) -> TransportConfig {
    let credentials = Some(Arc::new(Credentials::of_token(identity, secret)));
    TransportConfig { credentials, ..place }
}

fn open(place: &TransportConfig) -> (TcpTransport, Arc<Mail>) {
    let mail = Arc::new(Mail::default());
    let inbox = Arc::clone(&mail) as Arc<dyn Inbox>;
    (TcpTransport::open(place, &inbox).unwrap(), mail)
}

fn listener() -> (TcpTransport, Arc<Mail>) {
    open(&place(Some("127.0.0.1:0")))
}

/// Sends bytes, and more that are lent, each behind its number of own bytes.
fn send(line: &mut BlockingSender, own: &[u8], lent: &[(usize, Vec<u8>)], may_wait: bool) {
    let borrowed = lent.iter().map(|(_, lent)| lent.len()).sum::<usize>();
    let mut parcel = line.parcel(own.len() + borrowed, borrowed);
    fill(&mut parcel, own, lent);
    let limit = if may_wait { Duration::from_secs(20) } else { Duration::ZERO };
    line.send(parcel, Instant::now() + limit);
}

/// Sends bytes again and again, until anything is heard at an end.
fn send_until_heard(line: &mut BlockingSender, own: &[u8], at: &Mail) {
    wait_for(|| {
        send(line, own, &[], true);
        (!at.heard.lock().unwrap().is_empty()).then_some(())
    });
}

fn line(from: &TcpTransport, to: &str) -> BlockingSender {
    BlockingSender::new(from, to)
}

/// A server and a worker that is connected to it.
struct Pair {
    server: TcpTransport,
    worker: TcpTransport,
    at_server: Arc<Mail>,
    at_worker: Arc<Mail>,
    forth: BlockingSender,
    back: BlockingSender,
}

impl Pair {
    fn connected() -> Self {
        Self::between(listener(), open(&place(None)))
    }

    fn between(
        (server, at_server): (TcpTransport, Arc<Mail>),
        (worker, at_worker): (TcpTransport, Arc<Mail>),
    ) -> Self {
        let mut forth = line(&worker, server.address());
        let back = line(&server, worker.address());
        assert!(!forth.is_connected() && !back.is_connected());
        send(&mut forth, b"hello", &[], true);
        at_server.wait(1);
        at_server.heard.lock().unwrap().clear();
        assert!(forth.is_connected());
        Self { server, worker, at_server, at_worker, forth, back }
    }
}

fn from(name: &str, bytes: Vec<u8>) -> Heard {
    Heard::Bytes(name.into(), bytes)
}

#[test]
fn what_is_written_on_one_side_is_read_on_the_other_in_its_order() {
    let mut pair = Pair::connected();
    let size = |number: usize| match number % 4 {
        0 => number % 40,
        1 => 60_000 + number * 31 % 12_000,
        _ => number * 7_919 % 700_000,
    };
    for (line, mail, name) in [
        (&mut pair.forth, &pair.at_server, pair.worker.address()),
        (&mut pair.back, &pair.at_worker, pair.server.address()),
    ] {
        for number in 0..200 {
            send(&mut *line, &content(number, size(number)), &[], true);
        }
        let largest = content(7, 40_000_000);
        send(&mut *line, &largest, &[], true);
        let heard = mail.wait(201);
        let sent = (0..200).map(|number| content(number, size(number))).chain([largest]);
        assert!(heard.into_iter().eq(sent.map(|bytes| from(name, bytes))));
    }
}

#[test]
fn what_is_lent_stands_where_it_was_put() {
    let mut pair = Pair::connected();
    let own = content(1, 1_000);
    // More slices than the system takes in one call.
    let lent: Vec<(usize, Vec<u8>)> = (0..800).map(|at| (at, content(at, 1 + at * 3))).collect();
    let parts = lent.iter().flat_map(|(at, bytes)| [&bytes[..], &own[*at..=*at]]);
    let expected = [parts.collect::<Vec<_>>().concat(), own[800..].to_vec()].concat();
    send(&mut pair.forth, &own, &lent, true);
    send(&mut pair.forth, &[], &[], true);
    let name = pair.worker.address();
    assert!(pair.at_server.wait(2) == [from(name, expected), from(name, Vec::new())]);
}

#[test]
fn what_is_sent_from_its_place_is_not_read_behind_the_call() {
    let mut pair = Pair::connected();
    let end = || Instant::now() + Duration::from_secs(20);
    let (front, mut payload) = (content(3, 100), content(5, 8 << 20));
    let expected = [&front[..], &payload].concat();
    // While nothing is read the socket takes a part.
    let closed = pair.at_server.gate.lock().unwrap();
    while !pair.forth.owes() {
        assert!(pair.forth.send_from_place(&front, &payload, end()));
    }
    payload.fill(0);
    drop(closed);
    assert!(pair.forth.send_from_place(&front, &[], end()));
    let name = pair.worker.address();
    wait_for(|| pair.at_server.has(&from(name, front.clone())).then_some(()));
    let heard = pair.at_server.wait(2);
    assert!(heard[..heard.len() - 1].iter().all(|it| *it == from(name, expected.clone())));
}

#[test]
fn what_may_not_wait_is_owed_and_comes_in_its_order() {
    let mut pair = Pair::connected();
    let closed = pair.at_server.gate.lock().unwrap();
    let mut sent = 0;
    while !pair.forth.owes() {
        assert!(sent < 1_000, "the system takes 250 MB that no process reads");
        send(&mut pair.forth, &content(sent, 250_000), &[], false);
        sent += 1;
    }
    // Queued behind the owed bytes, although the socket would take them.
    for number in 0..3 {
        send(&mut pair.forth, &[number], &[(1, vec![9; 5])], false);
    }
    assert!(!pair.forth.is_ready());
    drop(closed);
    wait_for(|| (!pair.forth.owes()).then_some(()));
    let (name, heard) = (pair.worker.address(), pair.at_server.wait(sent + 3));
    let large = (0..sent).map(|number| content(number, 250_000));
    let small = (0..3).map(|number| vec![number, 9, 9, 9, 9, 9]);
    assert!(heard.into_iter().eq(large.chain(small).map(|bytes| from(name, bytes))));
}

#[test]
fn a_peer_that_reads_nothing_is_not_waited_for_longer_than_allowed() {
    let mut pair = Pair::connected();
    let closed = pair.at_server.gate.lock().unwrap();
    // The system may take what is owed, until its buffers and those of the peer are full.
    let begin = loop {
        let begin = Instant::now();
        while !pair.forth.owes() {
            send(&mut pair.forth, &content(0, 250_000), &[], false);
        }
        wait_for(|| (!pair.forth.owes()).then_some(()));
        if !pair.forth.is_connected() {
            break begin;
        }
    };
    assert!(begin.elapsed() > Duration::from_secs(1), "one second is allowed");
    drop(closed);
    // The other connection tells that both are there; this one is made again.
    wait_for(|| {
        send(&mut pair.forth, b"again", &[], true);
        pair.forth.is_connected().then_some(())
    });
    let again = from(pair.worker.address(), b"again".to_vec());
    wait_for(|| pair.at_server.heard.lock().unwrap().contains(&again).then_some(()));
    for mail in [&pair.at_worker, &pair.at_server] {
        assert!(!mail.heard.lock().unwrap().iter().any(|it| matches!(it, Heard::Down(_))));
    }
}

#[test]
fn the_last_words_of_a_process_come_before_its_end() {
    let mut pair = Pair::connected();
    let closed = pair.at_server.gate.lock().unwrap();
    // In the other direction there are bytes that the worker does not read.
    let not_read = pair.at_worker.gate.lock().unwrap();
    for number in 0..20 {
        send(&mut pair.forth, &[number; 1_000], &[], true);
        send(&mut pair.back, &content(3, 1_000), &[], true);
    }
    send(&mut pair.forth, &content(5, 300_000), &[], true);
    std::thread::scope(|scope| {
        let close = scope.spawn(|| pair.worker.close());
        std::thread::sleep(Duration::from_millis(50));
        drop(closed);
        drop(not_read);
        close.join().unwrap();
    });
    let name = pair.worker.address();
    let sent = (0..20).map(|number| vec![number; 1_000]).chain([content(5, 300_000)]);
    let all = sent.map(|bytes| from(name, bytes)).chain([Heard::Down(name.into())]);
    assert!(pair.at_server.wait(22).into_iter().eq(all));
    let heard = pair.at_worker.heard.lock().unwrap().len();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(pair.at_worker.heard.lock().unwrap().len(), heard, "it is closed");
}

#[test]
fn a_peer_that_is_there_again_is_connected_to_again() {
    let ((server, _), (worker, at_worker)) = (listener(), open(&place(None)));
    let address = server.address().to_owned();
    let mut line = line(&worker, &address);
    send(&mut line, &[1], &[], true);
    // The second one might be made, and end, behind the first.
    let peers = &worker.endpoint.incoming.peers;
    wait_for(|| (peers.all(&address).len() == 2).then_some(()));
    server.close();
    assert_eq!(at_worker.wait(1), [Heard::Down(address.clone())]);
    assert!(!line.is_ready());
    let (again, at_again) = open(&place(Some(&address)));
    // Messages are dropped until a connection has been made.
    send_until_heard(&mut line, &[2], &at_again);
    assert_eq!(at_again.wait(1)[0], from(worker.address(), vec![2]));
    drop(again);
}

#[test]
fn with_a_token_each_side_knows_the_identity_of_the_other() {
    let secret = "a secret of the job";
    let server = with_token(place(Some("127.0.0.1:0")), "server.0", secret);
    let (server, at_server) = open(&server);
    let (worker, at_worker) = open(&with_token(place(None), "worker.1", secret));
    assert!(worker.address().starts_with("worker.1@"));
    let mut forth = line(&worker, server.address());
    send(&mut forth, &[1], &[], true);
    assert_eq!(at_server.wait(1), [from(worker.address(), vec![1])]);
    let mut back = line(&server, worker.address());
    send(&mut back, &[2], &[], true);
    let name = format!("server.0@{}", server.address());
    assert_eq!(at_worker.wait(1), [from(&name, vec![2])]);
    worker.close();
    assert_eq!(at_server.wait(2)[1], Heard::Down(worker.address().into()));
}

/// Greets a listener with the token of a job, under an identity and a name of its choice.
fn pose(to: &TcpTransport, identity: &str, name: &str, secret: &str) -> TcpStream {
    let mut socket = TcpStream::connect(to.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (credentials, wanted) =
        (Credentials::of_token(identity, secret), CredentialKind::Scheduler);
    let mut greeting =
        CallerGreeting::new(Some(&credentials), name, wanted, Lane::first(Direction::Both), false)
            .unwrap();
    let mut out = greeting.call().to_vec();
    let mut received = Vec::new();
    while !greeting.receive(&mut received, &mut out).unwrap() {
        socket.write_all(&out).unwrap();
        out.clear();
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        received.extend_from_slice(&byte);
    }
    socket
}

#[test]
fn no_process_takes_the_address_of_another_one() {
    let (secret, name) = ("a secret of the job", "10.0.0.2:7");
    let scheduler = with_token(place(Some("127.0.0.1:0")), "scheduler", secret);
    let (scheduler, at_scheduler) = open(&scheduler);
    let message = |byte: u8| [&head(MessageKind::Frames, 1).unwrap()[..], &[byte]].concat();
    let mut first = pose(&scheduler, "server.0", name, secret);
    first.write_all(&message(1)).unwrap();
    assert_eq!(at_scheduler.wait(1), [from("server.0@10.0.0.2:7", vec![1])]);
    // Another identity is refused; the same one comes back.
    let mut other = pose(&scheduler, "server", name, secret);
    assert!(matches!(other.read(&mut [0]), Ok(0) | Err(_)));
    let mut again = pose(&scheduler, "server.0", name, secret);
    again.write_all(&message(2)).unwrap();
    let heard = at_scheduler.wait(3);
    let reason = "another process is connected from the address that it gives";
    assert_eq!(heard[1], Heard::Rejected("server".into(), reason.into()));
    assert_eq!(heard[2], from("server.0@10.0.0.2:7", vec![2]));
    let mut line = line(&scheduler, name);
    send(&mut line, &[3], &[], true);
    let mut back = [0; 9];
    again.read_exact(&mut back).unwrap();
    assert_eq!(back[..], message(3));
}

#[test]
fn a_refused_caller_and_the_listener_know_the_reason() {
    let (secret, other) = ("a secret of the job", "another secret of a job");
    for (listens, calls, told, logged) in [
        (None, Some(secret), "asks for no token", "it has a token, and this job has none"),
        (Some(secret), None, "wants a token; set token_file", "it has no token"),
        (Some(secret), Some(other), "it has another one", "its token is another one"),
    ] {
        let with = |place, identity, secret: Option<&str>| match secret {
            Some(secret) => with_token(place, identity, secret),
            None => place,
        };
        let (server, at_server) = open(&with(place(Some("127.0.0.1:0")), "server.0", listens));
        let (worker, at_worker) = open(&with(place(None), "worker.1", calls));
        let mut line = line(&worker, server.address());
        // Reported from the second time on.
        send_until_heard(&mut line, &[1], &at_worker);
        let Heard::Refused(to, reason) = &at_worker.wait(1)[0] else { panic!("no reason") };
        assert!(*to == *server.address() && reason.contains(told), "{reason}");
        let Heard::Rejected(who, reason) = &at_server.wait(1)[0] else { panic!("no reason") };
        let claimed = if calls.is_some() { "worker.1" } else { "a process" };
        assert_eq!((who.as_str(), reason.as_str()), (claimed, logged));
    }
}

fn certified(place: TransportConfig, name: &str, secret: Option<&str>) -> TransportConfig {
    let credentials = Some(Arc::new(Credentials::of_certificate(name, secret)));
    TransportConfig { credentials, ..place }
}

#[test]
fn inside_tls_all_arrives_and_each_side_knows_the_certificate_of_the_other() {
    for secret in [None, Some("a secret of the job")] {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let (server, at_server) = open(&certified(place(Some(host)), "server", secret));
            let (worker, at_worker) = open(&certified(place(None), "worker", secret));
            let (mut forth, mut back) =
                (line(&worker, server.address()), line(&server, worker.address()));
            let sizes = [0, 1, 16_383, 16_384, 16_385, 300_000, 5_000_000];
            for (number, size) in sizes.into_iter().enumerate() {
                let (at, lent) = (size / 3, content(number + 1, size));
                send(&mut forth, &content(number, size), &[(at, lent.clone())], true);
                let own = content(number, size);
                let expected = [&own[..at], &lent, &own[at..]].concat();
                let heard = at_server.wait(number + 1).pop().unwrap();
                assert!(heard == from(&format!("worker.3@{}", worker.endpoint.name), expected));
                send(&mut back, &own, &[], true);
                let heard = at_worker.wait(number + 1).pop().unwrap();
                assert!(heard == from(&format!("server.1@{}", server.address()), own));
            }
            worker.close();
            let end = Heard::Down(worker.address().into());
            assert_eq!(at_server.wait(sizes.len() + 1).pop(), Some(end));
        }
    }
}

type Give = fn(TransportConfig, &str) -> TransportConfig;

#[test]
fn certificates_that_do_not_fit_are_refused_by_name() {
    let plain = |place, _: &str| place;
    let tls = |place, name: &str| certified(place, name, None);
    let cases: [(Give, &str, Give, &str, &str); 6] = [
        (tls, "server", tls, "stranger", "of an authority that is not in its tls_ca_file"),
        (tls, "server", plain, "", "speaks TLS; set tls_ca_file"),
        (plain, "", tls, "worker", "does not speak TLS"),
        (tls, "elsewhere", tls, "worker", "it does not name this address"),
        (tls, "scheduler", tls, "worker", "is scheduler by its credential, and a server is wanted"),
        (tls, "worker", tls, "worker", "it is for callers only"),
    ];
    for (listens, listener, calls, caller, told) in cases {
        let (server, _) = open(&listens(place(Some("127.0.0.1:0")), listener));
        let (worker, at_worker) = open(&calls(place(None), caller));
        let mut line = line(&worker, server.address());
        send_until_heard(&mut line, &[1], &at_worker);
        let Heard::Refused(_, reason) = &at_worker.wait(1)[0] else { panic!("no reason") };
        assert!(reason.contains(told), "{listener}, {caller}: {reason}");
    }
}

fn by_hand() -> CallerGreeting {
    CallerGreeting::new(
        None,
        "mallory",
        CredentialKind::Server,
        Lane::first(Direction::Both),
        false,
    )
    .unwrap()
}

/// A connection made by hand, whose greeting is over.
fn greeted(to: &TcpTransport) -> TcpStream {
    let mut socket = TcpStream::connect(to.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let greeting = by_hand();
    socket.write_all(greeting.call()).unwrap();
    let mut received = Vec::new();
    while take(ANSWER, &mut received).unwrap().is_none() {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        received.extend_from_slice(&byte);
    }
    socket
}

#[test]
fn a_length_that_no_process_sends_ends_the_connection_and_an_unknown_kind_does_not() {
    for length in [u32::try_from(MOST_BYTES + 1).unwrap(), u32::MAX] {
        let (server, at_server) = listener();
        let mut socket = greeted(&server);
        let unknown = [&[3, 0, 0, 0, 77, 0, 0, 0][..], &[1, 2, 3]].concat();
        let known = [&head(MessageKind::Frames, 2).unwrap()[..], &[5, 6]].concat();
        socket.write_all(&[unknown, known].concat()).unwrap();
        assert_eq!(at_server.wait(1), [from("mallory", vec![5, 6])]);
        socket.write_all(&[&length.to_le_bytes()[..], &[0; 4]].concat()).unwrap();
        assert_eq!(at_server.wait(2)[1], Heard::Down("mallory".into()));
        assert!(matches!(socket.read(&mut [0]), Ok(0) | Err(_)));
    }
}

#[test]
fn half_open_connections_keep_no_process_out() {
    let (server, at_server) = listener();
    let greeting = by_hand();
    let call = greeting.call();
    let mut held = Vec::new();
    for number in 0..600 {
        let mut socket = TcpStream::connect(server.address()).unwrap();
        socket.write_all(&call[..number % call.len()]).unwrap();
        held.push(socket);
    }
    let (worker, _) = open(&place(None));
    let mut line = line(&worker, server.address());
    let begin = Instant::now();
    wait_for(|| {
        send(&mut line, &[1], &[], true);
        line.is_ready().then_some(())
    });
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    let came = |heard: &Heard| *heard == from(worker.address(), vec![1]);
    wait_for(|| at_server.heard.lock().unwrap().iter().any(came).then_some(()));
    // All of them have to go.
    for mut socket in held {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let still = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        assert!(!socket.read(&mut [0]).is_err_and(|error| still(&error)));
    }
}

#[test]
fn noise_is_refused_at_once() {
    let (server, at_server) = listener();
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 2, 0, 1], &[0xff; 999]] {
        let begin = Instant::now();
        let mut socket = TcpStream::connect(server.address()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.write_all(noise).unwrap();
        let mut answer = Vec::new();
        // The system resets a connection whose bytes were not read.
        let _ = socket.read_to_end(&mut answer);
        assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    }
    assert!(at_server.wait(3).iter().all(|it| matches!(it, Heard::Rejected(..))));
}

#[test]
fn threads_do_not_grow_with_connections() {
    let (server, at_server) = listener();
    let mut all: Vec<_> = (0..64)
        .map(|_| {
            let (worker, _) = open(&place(None));
            let mut line = line(&worker, server.address());
            send(&mut line, &[1], &[], true);
            (worker, line)
        })
        .collect();
    at_server.wait(64);
    assert!(server.endpoint.threads() <= crate::sys::processors());
    // They all go on, and their ends are known.
    for (_, line) in &mut all {
        send(&mut *line, &[2; 100], &[], true);
    }
    at_server.wait(128);
    drop(all);
    let heard = at_server.wait(192);
    assert_eq!(heard.iter().filter(|it| matches!(it, Heard::Down(_))).count(), 64);
}

#[test]
fn one_thread_reads_from_both_connections_with_a_peer() {
    let pair = Pair::connected();
    let connections = |at: &TcpTransport, peer: &TcpTransport| {
        at.endpoint.incoming.peers.all(peer.address()).len()
    };
    wait_for(|| (connections(&pair.worker, &pair.server) == 2).then_some(()));
    wait_for(|| (connections(&pair.server, &pair.worker) == 2).then_some(()));
    assert_eq!([&pair.worker, &pair.server].map(|it| it.endpoint.threads()), [1, 1]);
    // That of another peer is another one, if there is a processor for it.
    let (other, _) = open(&place(None));
    send(&mut line(&other, pair.server.address()), b"hello", &[], true);
    wait_for(|| (connections(&pair.server, &other) == 2).then_some(()));
    assert_eq!(pair.server.endpoint.threads(), crate::sys::processors().min(2));
}

#[test]
fn a_listener_that_is_closed_takes_no_connection() {
    let (server, _) = listener();
    let address = server.address().to_owned();
    server.close();
    wait_for(|| TcpStream::connect(&address).is_err().then_some(()));
    let (again, _) = open(&place(Some(&address)));
    drop(again);
}
