//! Frames whose payload is received to its destination.

use std::io::Write;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{greeted, line, listener, place, send};
use crate::tensor::Buffer;
use crate::transport::mail::wait_for;
use crate::transport::tcp::TcpTransport;
use crate::transport::tcp::framing::{MessageKind, head};
use crate::transport::{
    BlockingSender, Inbox, Piece, ReceiveGate, ReceivePlace, ReceiveRoom, ReceiveTarget, Receiver,
    Transport,
};

/// Length of the fronts of what is sent here.
const FRONT: usize = 24;

/// All that has arrived, and how many messages of it in memory of the inbox.
#[derive(Default)]
struct Rooms {
    heard: Mutex<(Vec<Vec<u8>>, usize)>,
    /// Lengths of payloads for which there is no memory.
    refused: Vec<usize>,
}

impl Inbox for Rooms {
    fn arrived(&self, _: &str, _: usize, pieces: &mut dyn Iterator<Item = Piece<'_>>) {
        self.heard.lock().unwrap().0.push(pieces.flat_map(Piece::to_vec).collect());
    }

    fn room(&self, _: &str, len: usize, front: &[u8]) -> Option<(ReceiveRoom, usize)> {
        if front.len() < FRONT || self.refused.contains(&len) {
            return None;
        }
        let payload = len - FRONT;
        ReceiveRoom::own(Buffer::new(payload + 5).unwrap(), payload).map(|room| (room, FRONT))
    }

    fn received(&self, _: &str, front: &[u8], payload: ReceiveRoom) {
        let len = payload.len();
        let (ReceivePlace::Own(buffer), sum) = payload.finish() else { panic!("an own buffer") };
        let mut bytes = front.to_vec();
        let payload = ReceiveRoom::bytes_of(&buffer, len);
        assert_eq!(sum, kvstore_checksum::crc32c(payload));
        bytes.extend_from_slice(payload);
        let mut heard = self.heard.lock().unwrap();
        heard.0.push(bytes);
        heard.1 += 1;
    }

    fn down(&self, _: &str) {}
}

/// A server, its line to a worker with this inbox, and the worker.
fn connected(inbox: &Arc<Rooms>) -> (TcpTransport, BlockingSender, TcpTransport) {
    let (server, _) = listener();
    let at_worker = Arc::clone(inbox) as Arc<dyn Inbox>;
    let worker = TcpTransport::open(&place(None), &at_worker).unwrap();
    send(&mut line(&worker, server.address()), b"hello", &[], true);
    let mut back = line(&server, worker.address());
    wait_for(|| {
        send(&mut back, b"hello", &[], true);
        (!inbox.heard.lock().unwrap().0.is_empty()).then_some(())
    });
    (server, back, worker)
}

fn content(number: usize, len: usize) -> Vec<u8> {
    (number..number + len).map(|at| (at * 7 / 3).to_le_bytes()[0]).collect()
}

#[test]
fn messages_of_all_sizes_come_in_their_order() {
    let inbox = Arc::new(Rooms { refused: vec![300_000], ..Rooms::default() });
    let (_server, mut back, _worker) = connected(&inbox);
    let is_hello = |bytes: &Vec<u8>| *bytes == b"hello";
    let sizes =
        [0, 10, FRONT, 70_000, 70_000, 5, 200_000, 300_000, 1 << 20, 1_023, 4 << 20, 64 << 10];
    let all: Vec<_> =
        (0..120).map(|number| content(number, sizes[number * 7 % sizes.len()])).collect();
    for bytes in &all {
        // Some of it from a lent part, as large values are.
        let own = bytes.len().min(FRONT);
        send(&mut back, &bytes[..own], &[(own, bytes[own..].to_vec())], true);
    }
    wait_for(|| (inbox.heard.lock().unwrap().0.ends_with(&all[all.len() - 1..])).then_some(()));
    let heard = inbox.heard.lock().unwrap();
    assert!(heard.0.iter().filter(|bytes| !is_hello(bytes)).eq(&all));
    assert!(heard.1 > 10, "{} large ones", heard.1);
}

#[test]
fn a_connection_that_is_lost_within_a_payload_gives_nothing_of_it() {
    let inbox = Arc::new(Rooms::default());
    let (server, mut back, worker) = connected(&inbox);
    // More than sockets hold; the worker's end is reset while it arrives.
    let bytes = content(3, 64 << 20);
    send(&mut back, &bytes[..FRONT], &[(FRONT, bytes[FRONT..].to_vec())], false);
    let connections = worker.endpoint.incoming.peers.all(server.address());
    connections.iter().for_each(|connection| connection.end());
    // The next one comes over a new connection.
    wait_for(|| {
        send(&mut back, b"again", &[], true);
        inbox.heard.lock().unwrap().0.contains(&b"again".to_vec()).then_some(())
    });
    let heard = inbox.heard.lock().unwrap();
    assert!(heard.0.iter().all(|it| it.len() == bytes.len() || it.len() == 5));
    assert!(heard.0.iter().all(|it| it.len() == 5 || *it == bytes));
}

/// A call that waits for a value.
struct Call {
    gate: ReceiveGate,
    out: &'static [AtomicU8],
}

impl Receiver for Call {
    fn gate(&self) -> &ReceiveGate {
        &self.gate
    }
}

/// Gives the memory of its call for each payload; counts those that have arrived, and those that are as they were sent.
struct Waiting {
    call: Arc<Call>,
    begun: AtomicUsize,
    arrived: AtomicUsize,
}

impl Inbox for Waiting {
    fn arrived(&self, _: &str, _: usize, _: &mut dyn Iterator<Item = Piece<'_>>) {}

    fn room(&self, _: &str, _: usize, front: &[u8]) -> Option<(ReceiveRoom, usize)> {
        if front.len() < FRONT {
            return None;
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
        let target = ReceiveTarget::to_shared(self.call.out, Arc::clone(&self.call) as Arc<_>);
        Some((ReceiveRoom::lent(target), FRONT))
    }

    fn received(&self, _: &str, _: &[u8], payload: ReceiveRoom) {
        assert_eq!(payload.finish().1, kvstore_checksum::crc32c(&content(7, 200_000)));
        self.arrived.fetch_add(1, Ordering::SeqCst);
    }

    fn down(&self, _: &str) {}
}

#[test]
fn a_call_ends_while_a_peer_sends_its_value_slowly() {
    let payload = content(7, 200_000);
    let out: Vec<_> = payload.iter().map(|_| AtomicU8::new(0)).collect();
    let out: &'static [AtomicU8] = out.leak();
    let call = Arc::new(Call { gate: ReceiveGate::default(), out });
    let (begun, arrived) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let at_server = Arc::new(Waiting { call: Arc::clone(&call), begun, arrived });
    let inbox = Arc::clone(&at_server) as Arc<dyn Inbox>;
    let server = TcpTransport::open(&place(Some("127.0.0.1:0")), &inbox).unwrap();
    let mut socket = greeted(&server);
    let head = head(MessageKind::Frames, FRONT + payload.len()).unwrap();
    let message = [&head[..], &[9; FRONT], &payload].concat();
    let (first, rest) = message.split_at(head.len() + FRONT + 90_000);
    socket.write_all(&message).unwrap();
    wait_for(|| (at_server.arrived.load(Ordering::SeqCst) == 1).then_some(()));
    assert!(out.iter().map(|byte| byte.load(Ordering::SeqCst)).eq(payload.iter().copied()));
    // The peer sends a part of it again, and no more while the call lasts.
    socket.write_all(first).unwrap();
    wait_for(|| (at_server.begun.load(Ordering::SeqCst) == 2).then_some(()));
    call.gate.close();
    // The memory is the caller's again.
    out.iter().for_each(|byte| byte.store(1, Ordering::SeqCst));
    socket.write_all(rest).unwrap();
    wait_for(|| (at_server.arrived.load(Ordering::SeqCst) == 2).then_some(()));
    assert!(out.iter().all(|byte| byte.load(Ordering::SeqCst) == 1));
}
