//! Two workers in one process, over the TCP and the shared memory of UCX. Without the library they do nothing.

mod large;

use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::library::{Library, keeping_signal_handlers};
use super::link::CONTACT;
use super::offer::{FRONT, UcxHeader, UcxMessage};
use super::{UcxTransport, peers, probe};
use crate::transport::mail::{Heard, Mail, content, fill, wait_for};
use crate::transport::peer_transport::{PathState, PeerPath, PeerTransport, TransportChoice};
use crate::transport::send_buffer::LentParts;
use crate::transport::tls::records_len;
use crate::transport::{Inbox, SendMemory};

const TCP: &[(&str, &str)] = &[("TLS", "tcp"), ("NET_DEVICES", "lo")];
const SHARED_MEMORY: &[(&str, &str)] = &[("TLS", "posix")];

fn is_there() -> bool {
    let opened = Library::open();
    if let Err(reason) = &opened {
        println!("not tested: {reason}");
    }
    opened.is_ok()
}

fn start(settings: &[(&str, &str)], is_sealed: bool) -> (UcxTransport, Arc<Mail>) {
    let mail = Arc::new(Mail::default());
    let inbox = Arc::clone(&mail) as Arc<dyn Inbox>;
    (UcxTransport::start(&inbox, settings, is_sealed).unwrap(), mail)
}

/// Over TCP and shared memory, without and with credentials.
const CASES: [(&[(&str, &str)], bool); 4] =
    [(TCP, false), (SHARED_MEMORY, false), (TCP, true), (SHARED_MEMORY, true)];

/// A worker and a server.
struct Pair {
    worker: UcxTransport,
    server: UcxTransport,
    at_worker: Arc<Mail>,
    at_server: Arc<Mail>,
    forth: Box<dyn PeerPath>,
    back: Box<dyn PeerPath>,
}

impl Pair {
    fn open(settings: &[(&str, &str)], is_sealed: bool) -> Self {
        let (worker, at_worker) = start(settings, is_sealed);
        let (server, at_server) = start(settings, is_sealed);
        assert_eq!(worker.has_secrets(), is_sealed);
        let (forth, back) = paths(&worker, &server);
        Self { worker, server, at_worker, at_server, forth, back }
    }
}

/// Open paths from a worker to a server, and back.
fn paths(worker: &UcxTransport, server: &UcxTransport) -> (Box<dyn PeerPath>, Box<dyn PeerPath>) {
    let (mut forth, mut back) = (worker.path("h:1").unwrap(), server.path("me").unwrap());
    assert_eq!((forth.state(), forth.has_room(1)), (PathState::Pending, false));
    // As over the connection, on which the server has an identity.
    server.accept("me", &forth.offer().unwrap());
    worker.accept("server.0@h:1", &back.offer().unwrap());
    assert!(forth.offer().is_none() && back.offer().is_none());
    let is_open = |path: &mut Box<dyn PeerPath>| path.state() == PathState::Open;
    wait_for(|| (is_open(&mut forth) && is_open(&mut back)).then_some(()));
    (forth, back)
}

fn send(path: &mut dyn PeerPath, own: &[u8], lent: &[(usize, Vec<u8>)]) -> bool {
    let borrowed = lent.iter().map(|(_, lent)| lent.len()).sum::<usize>();
    let Some(mut parcel) = path.parcel(own.len() + borrowed, borrowed) else { return false };
    fill(&mut parcel, own, lent);
    path.send(parcel);
    true
}

#[test]
fn what_is_sent_on_one_side_arrives_on_the_other() {
    if !is_there() {
        return;
    }
    for (settings, is_sealed) in CASES {
        let mut pair = Pair::open(settings, is_sealed);
        let ways: [(&mut Box<dyn PeerPath>, _, _); 2] = [
            (&mut pair.forth, &pair.at_server, "me"),
            (&mut pair.back, &pair.at_worker, "server.0@h:1"),
        ];
        for (path, mail, name) in ways {
            let mut sent = Vec::new();
            for number in 0..60 {
                let size = 1 + number * 31 % 40 + (number % 3) * number * 5_000;
                let own = content(number, size);
                let lent = vec![(size / 3, content(number + 1, size * 2)), (size, Vec::new())];
                let bytes = [&own[..size / 3], &lent[0].1, &own[size / 3..]].concat();
                wait_for(|| send(&mut **path, &own, &lent).then_some(()));
                sent.push(Heard::Bytes(name.into(), bytes));
            }
            // Large ones and small ones may overtake each other.
            let heard = mail.wait(sent.len());
            assert_eq!(heard.len(), sent.len());
            let came = |it: &Heard| heard.iter().filter(|heard| *heard == it).count();
            assert!(sent.iter().all(|it| came(it) == 1), "{settings:?}");
        }
        wait_for(|| pair.worker.shared.peers.lock().is_idle().then_some(()));
    }
}

#[test]
fn an_end_is_reported_behind_what_was_sent_and_closes_the_path() {
    if !is_there() {
        return;
    }
    for (settings, is_sealed) in CASES {
        let mut pair = Pair::open(settings, is_sealed);
        assert!(send(&mut *pair.forth, &content(1, 300_000), &[]));
        pair.worker.finish();
        assert!(!pair.server.end("stranger", true), "it knows nothing of it");
        assert!(pair.server.end("me", true));
        let bytes = Heard::Bytes("me".into(), content(1, 300_000));
        assert!(pair.at_server.wait(2) == [bytes, Heard::Down("me".into())], "{settings:?}");
        assert!(matches!(pair.back.state(), PathState::Broken(_)));
        assert!(!send(&mut *pair.back, &[1], &[]));
        assert!(!pair.worker.end("h:1", false), "another transport reports");
        pair.worker.close();
        pair.server.close();
        assert_eq!(pair.at_worker.heard.lock().unwrap().len(), 0);
    }
}

#[test]
fn a_peer_that_comes_back_is_reached_again() {
    if !is_there() {
        return;
    }
    for is_sealed in [false, true] {
        a_peer_comes_back(is_sealed);
    }
}

fn a_peer_comes_back(is_sealed: bool) {
    let mut pair = Pair::open(TCP, is_sealed);
    pair.worker.close();
    wait_for(|| {
        send(&mut *pair.back, &content(1, 100_000), &[]);
        matches!(pair.back.state(), PathState::Broken(_)).then_some(())
    });
    assert!(pair.server.end("me", true));
    pair.at_server.wait(1);
    let (again, at_again) = start(TCP, is_sealed);
    let (mut forth, mut back) = (again.path("h:1").unwrap(), pair.server.path("me").unwrap());
    pair.server.accept("me", &forth.offer().unwrap());
    again.accept("h:1", &back.offer().unwrap());
    wait_for(|| send(&mut *back, &[5], &[]).then_some(()));
    assert_eq!(at_again.wait(1), [Heard::Bytes("h:1".into(), vec![5])]);
}

/// Time in which a peer that has come back answers.
const LATE_ANSWER: Duration = Duration::from_secs(1);

#[test]
fn a_peer_that_does_not_answer_is_given_up_within_two_seconds() {
    if !is_there() {
        return;
    }
    let ((worker, _), (gone, _)) = (start(TCP, false), start(TCP, false));
    let mut path = worker.path("h:1").unwrap();
    let offer = gone.path("me").unwrap().offer().unwrap();
    // A process that was stopped, or a network that drops everything.
    let held = gone.shared.peers.lock();
    let begin = Instant::now();
    worker.accept("h:1", &offer);
    let reason = wait_for(|| match path.state() {
        PathState::Broken(reason) => Some(reason),
        _ => None,
    });
    assert!(begin.elapsed() < CONTACT + Duration::from_secs(1), "{:?}", begin.elapsed());
    assert!(reason.contains("no answer"), "{reason}");
    drop(held);
    // UCX 1.13 ends the process if the caller of a connection goes while it is answered (openucx/ucx#8175).
    std::thread::sleep(LATE_ANSWER);
}

#[test]
fn messages_without_the_secret_or_with_a_cut_header_are_dropped() {
    if !is_there() {
        return;
    }
    for settings in [TCP, SHARED_MEMORY] {
        let mut pair = Pair::open(settings, false);
        let (stranger, _) = start(settings, false);
        let mut peers = stranger.shared.peers.lock();
        let address = pair.server.shared.peers.lock().worker().address().to_vec();
        let endpoint = peers.worker().connect(&address).unwrap();
        let secrets = [[0; 16], [0xff; 16]];
        for (number, secret) in secrets.iter().enumerate() {
            for kind in [UcxMessage::Contact, UcxMessage::Answer, UcxMessage::Frames] {
                let own = stranger.shared.buffers.take(100_000 * number + 1);
                let SendMemory::Own(own) = own.memory else { panic!("memory") };
                let (len, link) = (100_000 * number + 1, Arc::default());
                let header = kind.header(secret);
                peers
                    .worker()
                    .send(endpoint, header, 0, own.cut(len), SmallVec::new(), &link)
                    .unwrap();
            }
        }
        for header in [&[][..], &[1; 23], &[1; 25], &[1; 100]] {
            peers.worker().send_raw(endpoint, header).unwrap();
        }
        drop(peers);
        wait_for(|| (pair.server.shared.peers.lock().dropped() == 10).then_some(()));
        assert!(send(&mut *pair.forth, &[1], &[]));
        assert_eq!(pair.at_server.wait(1), [Heard::Bytes("me".into(), vec![1])]);
    }
}

#[test]
fn the_signal_handlers_of_the_process_stay_as_they_are() {
    if !is_there() {
        return;
    }
    // The library was loaded before, and a worker opened.
    drop(start(TCP, false));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
    // Illegal instruction, and floating-point exception: neither this library nor the tests catch them.
    assert_eq!(caught & (1 << 3 | 1 << 7), 0, "{caught:x}");
    assert_eq!(keeping_signal_handlers(|| 7), 7);
}

#[test]
fn sealed_messages_are_taken_once_and_no_others_are() {
    if !is_there() {
        return;
    }
    for settings in [TCP, SHARED_MEMORY] {
        let mut pair = Pair::open(settings, true);
        let (stranger, _) = start(settings, true);
        let (sealer, tag) = {
            let peers = pair.worker.shared.peers.lock();
            (peers.sealer("h:1").unwrap(), peers.tag_of("h:1"))
        };
        // What an attacker on the fabric has seen of the worker's messages: their tag, and their bytes.
        let mut parcel = stranger.shared.buffers.take_records(100_000, FRONT);
        parcel.copy(&content(3, 100_000));
        let (number, parcel) = peers::seal(&sealer, UcxMessage::Frames, parcel).unwrap();
        let SendMemory::Records(mut sealed, _) = parcel.memory else { panic!("records") };
        let sealed = sealed.bytes_mut()[..records_len(FRONT + 100_000)].to_vec();
        let mut altered = sealed.clone();
        altered[50_000] ^= 1;
        let mut peers = stranger.shared.peers.lock();
        let address = pair.server.shared.peers.lock().worker().address().to_vec();
        let endpoint = peers.worker().connect(&address).unwrap();
        let mut send_as = |header, bytes: &[u8]| {
            let mut own = stranger.shared.buffers.take(bytes.len());
            own.copy(bytes);
            let SendMemory::Own(own) = own.memory else { panic!("memory") };
            let link = Arc::default();
            let own = own.cut(bytes.len());
            peers.worker().send(endpoint, header, 0, own, LentParts::new(), &link).unwrap();
            peers.worker().progress(&|_, _, _| None);
        };
        let as_sealed = UcxHeader::sealed(&tag, number);
        send_as(as_sealed, &altered);
        send_as(as_sealed, &sealed[..sealed.len() - 1]);
        send_as(UcxHeader::sealed(&tag, number + 1), &sealed);
        send_as(UcxMessage::Frames.header(&tag), &content(1, 9));
        send_as(UcxMessage::Contact.header(&tag), &[]);
        drop(peers);
        let dropped = |count| {
            wait_for(|| (pair.server.shared.peers.lock().dropped() == count).then_some(()));
        };
        dropped(5);
        assert_eq!(pair.at_server.heard.lock().unwrap().len(), 0);
        // The bytes of the worker are good once, also from another process.
        let mut peers = stranger.shared.peers.lock();
        for _ in 0..2 {
            let mut own = stranger.shared.buffers.take(sealed.len());
            own.copy(&sealed);
            let SendMemory::Own(own) = own.memory else { panic!("memory") };
            let (own, link) = (own.cut(sealed.len()), Arc::default());
            peers.worker().send(endpoint, as_sealed, 0, own, LentParts::new(), &link).unwrap();
        }
        drop(peers);
        dropped(6);
        assert!(pair.at_server.wait(1) == [Heard::Bytes("me".into(), content(3, 100_000))]);
        assert!(send(&mut *pair.forth, &[1], &[]));
        assert_eq!(pair.at_server.wait(2)[1], Heard::Bytes("me".into(), vec![1]));
    }
}

#[test]
fn an_offer_of_a_peer_with_other_credentials_is_dropped() {
    if !is_there() {
        return;
    }
    let ((worker, _), (server, _)) = (start(TCP, true), start(TCP, false));
    let (mut forth, mut back) = (worker.path("h:1").unwrap(), server.path("me").unwrap());
    server.accept("me", &forth.offer().unwrap());
    worker.accept("h:1", &back.offer().unwrap());
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((forth.state(), back.state()), (PathState::Pending, PathState::Pending));
}

#[test]
fn credentials_seal_and_missing_devices_are_reasons() {
    let choice = |transport, has_credentials| TransportChoice {
        transport,
        shm: true,
        has_credentials,
        is_scheduler: false,
    };
    if is_there() {
        let text = probe(&choice("ucx", false)).unwrap();
        assert!(text.starts_with("UCX 1.") && !text.contains("sealed"), "{text}");
        let text = probe(&choice("ucx", true)).unwrap();
        assert!(text.contains(", sealed: "), "{text}");
    }
}
