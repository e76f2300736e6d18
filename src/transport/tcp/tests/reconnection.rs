//! Connections that are lost between living processes, and the evidence that a process has ended.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::super::TcpTransport;
use super::super::greeting::{Answer, CALL, Status, take};
use super::{Pair, from, greeted, line, open, place, send};
use crate::transport::mail::{Heard, wait_for};
use crate::transport::random::random_bytes;
use crate::transport::{Transport, TransportConfig};

/// Ends a connection of a process with a peer without a word: one over which it sends, or the peer.
fn lose(transport: &TcpTransport, address: &str, is_preferred: bool) {
    let find = || {
        let all = transport.endpoint.incoming.peers.all(address);
        all.into_iter().find(|it| it.is_open() && it.is_preferred() == is_preferred)
    };
    wait_for(find).end();
}

#[test]
fn a_lost_connection_is_made_again_and_no_process_counts_as_ended() {
    let mut pair = Pair::connected();
    let (worker, server) = (pair.worker.address().to_owned(), pair.server.address().to_owned());
    for turn in 0..8_u8 {
        let (at, to) =
            if turn % 2 == 0 { (&pair.worker, &server) } else { (&pair.server, &worker) };
        lose(at, to, turn % 4 < 2);
        let (forth, back) = (from(&worker, vec![turn]), from(&server, vec![turn]));
        wait_for(|| {
            send(&mut pair.forth, &[turn], &[], true);
            send(&mut pair.back, &[turn], &[], true);
            let both = pair.at_server.has(&forth) && pair.at_worker.has(&back);
            both.then_some(())
        });
    }
    // Whichever side has lost what it sent knows that it may not have arrived.
    let known = || pair.at_worker.reconnected() > 0 && pair.at_server.reconnected() > 0;
    wait_for(|| known().then_some(()));
    for mail in [&pair.at_worker, &pair.at_server] {
        assert!(!mail.heard.lock().unwrap().iter().any(|it| matches!(it, Heard::Down(_))));
    }
}

#[test]
fn a_caller_that_does_not_come_again_has_ended_after_the_grace_period() {
    let grace_ms = 300;
    let (server, at_server) = open(&TransportConfig { grace_ms, ..place(Some("127.0.0.1:0")) });
    let socket = greeted(&server);
    let begin = Instant::now();
    // The end of the socket, without a word.
    drop(socket);
    assert_eq!(at_server.wait(1), [Heard::Down("mallory".into())]);
    assert!(begin.elapsed() >= Duration::from_millis(grace_ms));
    // One that comes again in time has not ended.
    let socket = greeted(&server);
    drop(socket);
    let _again = greeted(&server);
    std::thread::sleep(Duration::from_millis(2 * grace_ms));
    assert_eq!(at_server.heard.lock().unwrap().len(), 1);
}

#[test]
fn a_listener_whose_port_refuses_connections_has_ended() {
    let (worker, at_worker) = open(&place(None));
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap().to_string();
    let mut line = line(&worker, &address);
    // A listener of the test, which greets the two connections of the caller.
    let greet = std::thread::spawn(move || [(); 2].map(|()| greet(port.accept().unwrap().0)));
    send(&mut line, &[1], &[], true);
    wait_for(|| line.is_connected().then_some(()));
    drop(greet.join().unwrap());
    let begin = Instant::now();
    assert_eq!(at_worker.wait(1), [Heard::Down(address)]);
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

/// Greets a caller without credentials.
fn greet(mut socket: TcpStream) -> TcpStream {
    let mut received = Vec::new();
    while take(CALL, &mut received).unwrap().is_none() {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        received.extend_from_slice(&byte);
    }
    let (status, random) = (Status::Welcome, random_bytes().unwrap());
    let (identity, share) = (None, None);
    let answer = Answer { status, wants_token: false, random, identity, share };
    socket.write_all(&answer.encode()).unwrap();
    socket
}
