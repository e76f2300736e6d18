//! Records whose keys are made of a token, and a man in the middle who alters what passes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::TcpTransport;
use super::{content, from, line, open, place, send, send_until_heard};
use crate::credentials::Credentials;
use crate::transport::mail::{Heard, wait_for};
use crate::transport::{Transport, TransportConfig};

const SECRET: &str = "a secret of the job";

fn with(place: TransportConfig, identity: &str, seals: bool) -> TransportConfig {
    let credentials = Credentials::of_token(identity, SECRET);
    let credentials = if seals { credentials.sealing() } else { credentials };
    TransportConfig { credentials: Some(Arc::new(credentials)), ..place }
}

fn all_are_sealed(transport: &TcpTransport, address: &str) -> bool {
    let all = transport.endpoint.incoming.peers.all(address);
    assert!(!all.is_empty());
    all.iter().all(|connection| connection.is_sealed())
}

#[test]
fn all_arrives_sealed_where_the_caller_asks_for_it_and_plain_where_neither_does() {
    for (calls, listens) in [(true, true), (true, false), (false, false)] {
        let server = with(place(Some("127.0.0.1:0")), "server.0", listens);
        let ((server, at_server), (worker, at_worker)) =
            (open(&server), open(&with(place(None), "worker.1", calls)));
        let (mut forth, mut back) =
            (line(&worker, server.address()), line(&server, worker.address()));
        for (number, size) in [0, 1, 16_376, 16_377, 300_000, 5_000_000].into_iter().enumerate() {
            let (own, lent) = (content(number, size), vec![(size / 3, content(7, size))]);
            send(&mut forth, &own, &lent, true);
            let expected = [&own[..size / 3], &lent[0].1, &own[size / 3..]].concat();
            let heard = at_server.wait(number + 1).pop().unwrap();
            assert!(heard == from(worker.address(), expected));
            send(&mut back, &own, &[], true);
            let heard = at_worker.wait(number + 1).pop().unwrap();
            assert!(heard == from(&format!("server.0@{}", server.address()), own));
        }
        // Sealing copies.
        let end = Instant::now() + Duration::from_secs(20);
        assert_ne!(forth.send_from_place(b"front", &content(5, 1 << 20), end), calls);
        assert_eq!(all_are_sealed(&worker, server.address()), calls);
        assert_eq!(all_are_sealed(&server, worker.address()), calls);
    }
}

#[test]
fn a_listener_that_wants_records_tells_a_caller_that_does_not_ask() {
    let (server, _) = open(&with(place(Some("127.0.0.1:0")), "server.0", true));
    let (worker, at_worker) = open(&with(place(None), "worker.1", false));
    let mut line = line(&worker, server.address());
    send_until_heard(&mut line, &[1], &at_worker);
    let Heard::Refused(_, reason) = &at_worker.wait(1)[0] else { panic!("no reason") };
    assert!(reason.contains("set integrity=yes"), "{reason}");
}

/// What a man in the middle does to some bytes.
type Alter = fn(&mut Vec<u8>);

/// Passes connections on to a listener, and alters once what callers send: behind a megabyte.
fn man_in_the_middle(to: &str, alter: Alter) -> (String, Arc<AtomicBool>) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap().to_string();
    let (to, done) = (to.to_owned(), Arc::new(AtomicBool::new(false)));
    let altered = Arc::clone(&done);
    std::thread::spawn(move || {
        for caller in port.incoming() {
            let (Ok(caller), Ok(listener)) = (caller, TcpStream::connect(&to)) else { return };
            let ends =
                [(caller.try_clone().unwrap(), listener.try_clone().unwrap()), (listener, caller)];
            for (number, (from, to)) in ends.into_iter().enumerate() {
                let altered = Arc::clone(&altered);
                std::thread::spawn(move || {
                    pass_on(from, to, (number == 0).then_some(&altered), alter);
                });
            }
        }
    });
    (address, done)
}

fn pass_on(
    mut from: TcpStream,
    mut to: TcpStream,
    altered: Option<&Arc<AtomicBool>>,
    alter: Alter,
) {
    let (mut passed, mut room) = (0, vec![0; 64 << 10]);
    while let Ok(count @ 1..) = from.read(&mut room) {
        let mut bytes = room[..count].to_vec();
        passed += count;
        let is_due = passed > 1 << 20 && count > 1_000;
        if is_due && altered.is_some_and(|altered| !altered.swap(true, Ordering::SeqCst)) {
            alter(&mut bytes);
        }
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

const ALTERATIONS: [(&str, Alter); 4] = [
    ("a bit is flipped", |bytes| bytes[500] ^= 0x10),
    ("bytes are repeated", |bytes| bytes.extend_from_within(..)),
    ("bytes are cut out", |bytes| drop(bytes.drain(100..300))),
    ("bytes are swapped", |bytes| bytes.rotate_left(400)),
];

/// Sends values through a man in the middle until all have arrived; whether all that has arrived was sent.
fn all_is_as_it_was_sent(seals: bool, alter: Alter) -> bool {
    let (server, at_server) = open(&with(place(Some("127.0.0.1:0")), "server.0", seals));
    let (worker, at_worker) = open(&with(place(None), "worker.1", seals));
    let (address, altered) = man_in_the_middle(server.address(), alter);
    let mut forth = line(&worker, &address);
    let sent: Vec<_> =
        (0..20).map(|number| from(worker.address(), content(number * 13, 200_000))).collect();
    let mut turns = 0;
    wait_for(|| {
        for heard in &sent {
            let Heard::Bytes(_, bytes) = heard else { continue };
            send(&mut forth, bytes, &[], true);
        }
        turns += 1;
        let is_done = altered.load(Ordering::SeqCst)
            && sent.iter().all(|it| at_server.has(it))
            && (!seals || at_worker.reconnected() > 0);
        (is_done || turns > 40).then_some(())
    });
    assert!(altered.load(Ordering::SeqCst), "nothing was altered");
    let heard = at_server.heard.lock().unwrap();
    heard.iter().all(|it| sent.contains(it))
}

#[test]
fn what_a_man_in_the_middle_alters_does_not_arrive_and_the_connection_is_made_again() {
    for (what, alter) in ALTERATIONS {
        assert!(all_is_as_it_was_sent(true, alter), "{what}");
    }
    // Without records it arrives: frames have checksums, which a man in the middle can make himself.
    assert!(!all_is_as_it_was_sent(false, ALTERATIONS[0].1));
}
