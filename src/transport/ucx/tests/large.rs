//! Frames whose fronts travel in headers, and whose payloads are received to blocks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{SHARED_MEMORY, TCP, is_there, paths, start};
use crate::tensor::Buffer;
use crate::transport::mail::{content, fill, wait_for};
use crate::transport::peer_transport::{PeerPath, PeerTransport};
use crate::transport::send_buffer::LentParts;
use crate::transport::ucx::offer::UcxMessage;
use crate::transport::ucx::{LAST_WORDS, UcxTransport};
use crate::transport::{
    Inbox, PayloadBlocks, Piece, ReceivePlace, ReceiveRoom, SendBuffers, SendMemory,
};

/// Length of the fronts of what is sent here.
const FRONT: usize = 140;
/// Larger than what UCX sends eagerly, by the settings of [`with_rendezvous`].
const PAYLOAD: usize = 200_000;

/// Settings with which UCX announces all messages of so many bytes.
fn with_rendezvous(settings: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    [settings, &[("RNDV_THRESH", "50000")]].concat()
}

/// Gives blocks, and remembers their addresses.
#[derive(Default)]
struct Blocks {
    given: Mutex<Vec<usize>>,
    /// No block is given.
    refuses: AtomicBool,
    /// Blocks are given for other payloads than those that are announced.
    lies: AtomicBool,
}

impl Blocks {
    fn count(&self) -> usize {
        self.given.lock().unwrap().len()
    }
}

impl PayloadBlocks for Blocks {
    fn block(&self, len: usize, front: &[u8]) -> Option<ReceiveRoom> {
        assert_eq!(front.len(), FRONT);
        if self.refuses.load(Ordering::SeqCst) {
            return None;
        }
        let len = len - FRONT - usize::from(self.lies.load(Ordering::SeqCst));
        let buffer = Buffer::new(len + 5).unwrap();
        self.given.lock().unwrap().push(buffer.as_ptr() as usize);
        ReceiveRoom::own(buffer, len)
    }
}

/// All that has arrived: its bytes, and the address of the block if it has one.
#[derive(Default)]
struct Rooms {
    blocks: Arc<Blocks>,
    heard: Mutex<Vec<(Vec<u8>, Option<usize>)>>,
    /// Blocks that were received are kept, so that each has an address of its own.
    kept: Mutex<Vec<Buffer>>,
    downs: Mutex<usize>,
}

impl Rooms {
    fn wait(&self, count: usize) -> Vec<(Vec<u8>, Option<usize>)> {
        wait_for(|| (self.heard.lock().unwrap().len() >= count).then_some(()));
        self.heard.lock().unwrap().clone()
    }
}

impl Inbox for Rooms {
    fn arrived(&self, _: &str, len: usize, pieces: &mut dyn Iterator<Item = Piece<'_>>) {
        let bytes: Vec<u8> = pieces.flat_map(Piece::to_vec).collect();
        assert_eq!(bytes.len(), len);
        self.heard.lock().unwrap().push((bytes, None));
    }

    fn blocks(&self) -> Option<Arc<dyn PayloadBlocks>> {
        Some(Arc::clone(&self.blocks) as Arc<_>)
    }

    fn received(&self, from: &str, front: &[u8], payload: ReceiveRoom) {
        assert_eq!(from, "me");
        let len = payload.len();
        let (ReceivePlace::Own(buffer), sum) = payload.finish() else { panic!("an own buffer") };
        let payload = ReceiveRoom::bytes_of(&buffer, len);
        assert_eq!(sum, kvstore_checksum::crc32c(payload));
        let heard = ([front, payload].concat(), Some(buffer.as_ptr() as usize));
        self.heard.lock().unwrap().push(heard);
        self.kept.lock().unwrap().push(buffer);
    }

    fn down(&self, _: &str) {
        *self.downs.lock().unwrap() += 1;
    }
}

/// A worker, and a server with blocks.
struct Pair {
    worker: UcxTransport,
    server: UcxTransport,
    at_server: Arc<Rooms>,
    forth: Box<dyn PeerPath>,
}

impl Pair {
    fn open(settings: &[(&'static str, &'static str)], is_sealed: bool) -> Self {
        Self::with(&with_rendezvous(settings), is_sealed)
    }

    fn with(settings: &[(&str, &str)], is_sealed: bool) -> Self {
        let (worker, _) = start(settings, is_sealed);
        let at_server = Arc::new(Rooms::default());
        let inbox = Arc::clone(&at_server) as Arc<dyn Inbox>;
        let server = UcxTransport::start(&inbox, settings, is_sealed).unwrap();
        let (forth, _) = paths(&worker, &server);
        Self { worker, server, at_server, forth }
    }

    /// Sends a frame, of whose payload so many bytes are lent; its bytes.
    fn send(&mut self, number: usize, lent: usize) -> Vec<u8> {
        let bytes = content(number, FRONT + PAYLOAD);
        let (own, part) = bytes.split_at(bytes.len() - lent);
        let mut parcel = wait_for(|| self.forth.parcel(bytes.len(), lent));
        fill(&mut parcel, own, &[(own.len(), part.to_vec())]);
        parcel.is_frame(FRONT);
        self.forth.send(parcel);
        bytes
    }
}

#[test]
fn payloads_are_received_to_the_blocks_that_were_given_for_them() {
    if !is_there() {
        return;
    }
    for settings in [TCP, SHARED_MEMORY] {
        let mut pair = Pair::open(settings, false);
        let lent = [0, PAYLOAD, PAYLOAD / 3, 0];
        let sent: Vec<_> = (0..lent.len()).map(|number| pair.send(number, lent[number])).collect();
        let heard = pair.at_server.wait(sent.len());
        let given = pair.at_server.blocks.given.lock().unwrap().clone();
        assert_eq!((heard.len(), given.len()), (sent.len(), sent.len()), "{settings:?}");
        for bytes in &sent {
            let found = heard.iter().find(|(heard, _)| heard == bytes);
            let address = found.and_then(|(_, address)| *address).expect("in a block");
            assert!(given.contains(&address), "{settings:?}");
        }
        wait_for(|| pair.worker.shared.peers.lock().is_idle().then_some(()));
    }
}

#[test]
fn a_frame_that_is_sent_again_has_a_block_of_its_own() {
    if !is_there() {
        return;
    }
    let mut pair = Pair::open(TCP, false);
    let bytes = pair.send(5, 0);
    assert!(pair.send(5, PAYLOAD) == bytes);
    let heard = pair.at_server.wait(2);
    assert!(heard.iter().all(|(heard, address)| *heard == bytes && address.is_some()));
    assert_ne!(heard[0].1, heard[1].1);
}

#[test]
fn a_frame_without_a_block_or_with_one_of_another_size_arrives_in_pieces() {
    if !is_there() {
        return;
    }
    for settings in [TCP, SHARED_MEMORY] {
        let mut pair = Pair::open(settings, false);
        pair.at_server.blocks.refuses.store(true, Ordering::SeqCst);
        let first = pair.send(1, 0);
        assert!(pair.at_server.wait(1) == [(first, None)]);
        pair.at_server.blocks.refuses.store(false, Ordering::SeqCst);
        pair.at_server.blocks.lies.store(true, Ordering::SeqCst);
        let second = pair.send(2, PAYLOAD);
        assert!(pair.at_server.wait(2)[1] == (second, None));
        // The fronts of small frames are data.
        let small = content(3, 1_000);
        assert!(super::send(&mut *pair.forth, &small, &[]));
        assert!(pair.at_server.wait(3)[2] == (small, None));
    }
}

#[test]
fn a_frame_that_is_not_announced_arrives_in_pieces() {
    if !is_there() {
        return;
    }
    for settings in [TCP, SHARED_MEMORY] {
        let mut pair = Pair::with(&[settings, &[("RNDV_THRESH", "inf")]].concat(), false);
        let sent = [0, PAYLOAD].map(|lent| pair.send(lent, lent));
        let heard = pair.at_server.wait(sent.len());
        assert!(sent.into_iter().all(|bytes| heard.contains(&(bytes, None))), "{settings:?}");
        assert_eq!(pair.at_server.blocks.count(), 0);
    }
}

#[test]
fn sealed_frames_have_no_blocks() {
    if !is_there() {
        return;
    }
    let mut pair = Pair::open(TCP, true);
    let bytes = pair.send(1, 0);
    assert!(pair.at_server.wait(1) == [(bytes, None)]);
    assert_eq!(pair.at_server.blocks.count(), 0);
}

/// A pair of which the server has the announcement of a frame, and no payload: the worker makes no progress while its
/// lock is held, until `meanwhile` has returned.
fn announced(meanwhile: impl FnOnce(&Pair)) -> Pair {
    let mut pair = Pair::open(TCP, false);
    let bytes = content(1, FRONT + PAYLOAD);
    let mut parcel = wait_for(|| pair.forth.parcel(bytes.len(), 0));
    parcel.copy(&bytes);
    parcel.is_frame(FRONT);
    let shared = Arc::clone(&pair.worker.shared);
    let mut held = shared.peers.lock();
    held.send("h:1", parcel, 0);
    wait_for(|| (pair.at_server.blocks.count() == 1).then_some(()));
    meanwhile(&pair);
    pair
}

#[test]
fn a_payload_of_a_peer_that_ends_meanwhile_is_no_value() {
    if !is_there() {
        return;
    }
    let pair = announced(|pair| {
        assert!(pair.server.end("me", true));
        wait_for(|| (*pair.at_server.downs.lock().unwrap() == 1).then_some(()));
    });
    std::thread::sleep(LAST_WORDS);
    assert_eq!(pair.at_server.heard.lock().unwrap().len(), 0);
    // The peer comes back, and sends the frame again.
    let (worker, _) = start(&with_rendezvous(TCP), false);
    let (forth, _) = paths(&worker, &pair.server);
    let mut again = Pair { worker, forth, ..pair };
    let bytes = again.send(1, 0);
    let heard = again.at_server.wait(1);
    assert!(heard[0].0 == bytes && heard[0].1.is_some() && heard.len() == 1);
}

#[test]
fn a_server_closes_while_a_payload_is_received() {
    if !is_there() {
        return;
    }
    let pair = announced(|pair| pair.server.close());
    assert_eq!(pair.at_server.heard.lock().unwrap().len(), 0);
}

#[test]
fn the_front_of_a_stranger_asks_for_no_block() {
    if !is_there() {
        return;
    }
    for settings in [TCP, SHARED_MEMORY] {
        let pair = Pair::open(settings, false);
        let (stranger, _) = start(&with_rendezvous(settings), false);
        let tag = pair.worker.shared.peers.lock().tag_of("h:1");
        let mut peers = stranger.shared.peers.lock();
        let address = pair.server.shared.peers.lock().worker().address().to_vec();
        let endpoint = peers.worker().connect(&address).unwrap();
        let buffers: Arc<SendBuffers> = Arc::default();
        // Another tag; and kinds of messages that have no frames.
        let frames = (UcxMessage::Frames, [7; 16]);
        for (kind, tag) in [frames, (UcxMessage::Contact, tag), (UcxMessage::Answer, tag)] {
            let mut parcel = buffers.take(FRONT + PAYLOAD);
            parcel.copy(&content(1, FRONT + PAYLOAD));
            let SendMemory::Own(own) = parcel.memory else { panic!("memory") };
            let (header, own) = (kind.header(&tag), own.cut(FRONT + PAYLOAD));
            let (lent, link) = (LentParts::new(), Arc::default());
            peers.worker().send(endpoint, header, FRONT, own, lent, &link).unwrap();
        }
        drop(peers);
        let server = &pair.server.shared.peers;
        wait_for(|| (server.lock().dropped() == 3).then_some(()));
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(pair.at_server.blocks.count(), 0);
        assert_eq!(pair.at_server.heard.lock().unwrap().len(), 0);
    }
}
