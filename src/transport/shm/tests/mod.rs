//! Both sides of a ring in one process: a descriptor is given as to another process.

mod polling;

use std::sync::Arc;
use std::time::Duration;

use super::segment::{QUEUE, Segment};
use super::{SegmentOffer, ShmReceivers, ShmSender, handover};
use crate::sys::descriptors::send_descriptor;
use crate::transport::Inbox;
use crate::transport::mail::{Heard, Mail, content, wait_for};

/// Reports the end of a process, as the transport does.
fn forget(mail: &Mail, inlets: &ShmReceivers, address: &str) {
    if !inlets.forget(address, true) {
        mail.down(address);
    }
}

fn inlets() -> (Arc<Mail>, ShmReceivers) {
    let mail = Arc::new(Mail::default());
    (Arc::clone(&mail), ShmReceivers::new(mail))
}

fn wait_until(mut ready: impl FnMut() -> bool) {
    wait_for(|| ready().then_some(()));
}

/// A sender whose offer was taken.
fn taken(inlets: &ShmReceivers) -> ShmSender {
    let mut outlet = ShmSender::new().unwrap();
    assert!(outlet.claim(10).is_none(), "nobody has taken the offer");
    inlets.take("peer", &SegmentOffer::decode(&outlet.offer().encode()).unwrap());
    wait_until(|| outlet.claim(10).is_some());
    outlet
}

fn send(outlet: &mut ShmSender, bytes: &[u8]) -> bool {
    let had_room = outlet.has_room(bytes.len());
    let Some(mut claim) = outlet.claim(bytes.len()) else { return false };
    assert!(had_room, "room only comes");
    claim.write(0, bytes);
    outlet.publish(&claim, bytes.len());
    true
}

/// Publishes the pieces before `head`, as a sender.
fn publish(segment: &Segment, head: u64) {
    if segment.publish(head) {
        segment.wake();
    }
}

fn from_peer(bytes: Vec<u8>) -> Heard {
    Heard::Bytes("peer".into(), bytes)
}

#[test]
fn what_is_written_on_one_side_is_read_on_the_other_in_its_order() {
    let (mail, inlets) = inlets();
    let mut outlet = taken(&inlets);
    let sizes = |number: usize| match number % 3 {
        0 => 1 + number % 40,
        _ => 1 + number * 7_919 % 700_000,
    };
    for round in 0..100 {
        // Some pieces stay unread in the ring, more with each round. They are made before: a receiver that does
        // not read for a second gets no more.
        let content = |number: usize| content(round + number, sizes(round * 40 + number));
        let pieces: Vec<Vec<u8>> = (0..=round % 40).map(content).collect();
        let closed = mail.gate.lock().unwrap();
        let mut sent = Vec::new();
        for bytes in pieces {
            if !send(&mut outlet, &bytes) {
                let waiting: usize = sent.iter().map(Vec::len).sum();
                assert!(waiting + bytes.len() > 6 << 20, "no room beside {waiting} bytes");
                break;
            }
            sent.push(bytes);
        }
        drop(closed);
        let heard = mail.wait(sent.len());
        assert!(heard.into_iter().eq(sent.into_iter().map(from_peer)), "round {round}");
        mail.heard.lock().unwrap().clear();
    }
}

#[test]
fn what_nobody_reads_fills_the_ring_and_nothing_else() {
    let (mail, inlets) = inlets();
    let mut outlet = taken(&inlets);
    let closed = mail.gate.lock().unwrap();
    let bytes = content(3, 1 << 20);
    assert_eq!(std::iter::from_fn(|| send(&mut outlet, &bytes).then_some(())).count(), 8);
    assert!(!send(&mut outlet, &[1]) && !outlet.has_room(1));
    assert!(outlet.renewed().is_none(), "it is too soon to think that nobody reads");
    drop(closed);
    assert_eq!(mail.wait(8), vec![from_peer(bytes); 8]);

    let closed = mail.gate.lock().unwrap();
    let count = std::iter::from_fn(|| send(&mut outlet, &[7]).then_some(())).take(1_000).count();
    assert_eq!(count, QUEUE);
    drop(closed);
    mail.wait(8 + count);
    wait_until(|| send(&mut outlet, &[7]));
}

#[test]
fn whoever_reads_no_more_gets_the_offer_again() {
    let (mail, inlets) = inlets();
    let mut outlet = taken(&inlets);
    let closed = mail.gate.lock().unwrap();
    assert!(send(&mut outlet, &[1]) && send(&mut outlet, &[2]));
    std::thread::sleep(Duration::from_millis(1_100));
    assert!(!send(&mut outlet, &[3]), "nothing more is written for whoever does not read");
    let offer = outlet.renewed().unwrap();
    assert!(outlet.renewed().is_none(), "not all the time");
    // Another process at the same address reads all later pieces.
    let (other_mail, other) = self::inlets();
    other.take("peer", &offer);
    wait_until(|| send(&mut outlet, &[4]));
    assert_eq!(other_mail.wait(1), [from_peer(vec![4])]);
    drop(closed);
    mail.wait(1);
}

#[test]
fn an_end_is_heard_behind_what_was_sent_before() {
    let (mail, inlets) = inlets();
    let mut outlet = taken(&inlets);
    let closed = mail.gate.lock().unwrap();
    for number in 0..20 {
        assert!(send(&mut outlet, &[number]));
    }
    forget(&mail, &inlets, "peer");
    forget(&mail, &inlets, "stranger");
    drop(closed);
    let mut heard = mail.wait(22);
    let stranger = heard.iter().position(|it| *it == Heard::Down("stranger".into()));
    heard.remove(stranger.unwrap());
    let sent = (0..20).map(|number| from_peer(vec![number]));
    assert!(heard.into_iter().eq(sent.chain([Heard::Down("peer".into())])));
    wait_until(|| outlet.is_declined());
}

#[test]
fn nothing_is_read_after_the_end() {
    let (mail, inlets) = inlets();
    let mut outlet = taken(&inlets);
    inlets.close();
    wait_until(|| outlet.is_declined());
    assert!(!send(&mut outlet, &[1]));
    let late = ShmSender::new().unwrap();
    inlets.take("late", &late.offer());
    assert!(!late.is_declined() && mail.heard.lock().unwrap().is_empty());
}

#[test]
fn a_new_offer_takes_the_place_of_the_one_before() {
    let (mail, inlets) = inlets();
    let (mut first, mut second) = (taken(&inlets), ShmSender::new().unwrap());
    assert!(send(&mut first, &[1]));
    inlets.take("peer", &second.offer());
    wait_until(|| first.is_declined());
    wait_until(|| send(&mut second, &[2]));
    assert_eq!(mail.wait(2), [from_peer(vec![1]), from_peer(vec![2])]);
}

#[test]
fn an_offer_of_anything_else_is_refused() {
    let (_, inlets) = inlets();
    let mut outlet = ShmSender::new().unwrap();
    let offer = outlet.offer();
    let changed = |mut bytes: [u8; 16]| {
        bytes[7] ^= 1;
        bytes
    };
    for wrong in [
        SegmentOffer { socket: changed(offer.socket), ..offer },
        SegmentOffer { token: changed(offer.token), ..offer },
    ] {
        assert!(handover::get(&wrong).is_err());
    }
    // Anything shorter, or longer, is no offer.
    let bytes = [&offer.encode()[..], &[0]].concat();
    for len in 0..bytes.len() - 1 {
        assert!(SegmentOffer::decode(&bytes[..len]).is_none());
    }
    assert!(SegmentOffer::decode(&bytes).is_none());
    assert_eq!(SegmentOffer::decode(&offer.encode()), Some(offer));
    let file = outlet.segment().file().unwrap().try_clone_to_owned().unwrap();
    for size in [0, 1, (8 << 20) - 1, (8 << 20) + 1, 64 << 20, 65 << 20, usize::MAX] {
        assert!(Segment::open(file.try_clone().unwrap(), size).is_err(), "{size} bytes");
    }
    assert!(outlet.claim(1).is_none(), "none of them counts as an answer");
    inlets.take("peer", &offer);
    wait_until(|| outlet.claim(1).is_some());
}

#[test]
fn one_process_gets_a_descriptor_and_no_further_one() {
    let mut outlet = ShmSender::new().unwrap();
    let offer = outlet.offer();
    let file = handover::get(&offer).unwrap();
    assert!(handover::get(&offer).is_err(), "the offer is over");
    let segment = Segment::open(file, 8 << 20).unwrap();
    segment.taken().store(1, std::sync::atomic::Ordering::SeqCst);
    assert!(send(&mut outlet, &[5]));
    assert_eq!(segment.head().load(std::sync::atomic::Ordering::SeqCst), 1, "the same memory");
}

#[test]
fn an_offer_ends_with_its_segment_and_with_its_time() {
    let outlet = ShmSender::new().unwrap();
    let offer = outlet.offer();
    drop(outlet);
    assert!(handover::get(&offer).is_err());
    let outlet = ShmSender::new().unwrap();
    let socket = handover::open(outlet.segment(), [3; 16], Duration::ZERO).unwrap();
    let late = SegmentOffer { socket, token: [3; 16], size: 8 << 20 };
    // The thread drops it before it accepts the next connection, or the one after.
    let _ = handover::get(&SegmentOffer { token: [4; 16], ..late });
    assert!(handover::get(&late).is_err());
}

/// A socket that answers a receiver with other files, or in another way, than a sender does.
#[test]
fn a_peer_that_gives_something_else_shares_no_memory_and_is_reported_when_it_ends() {
    let memory = crate::sys::memory_file(&vec![0; 8_192 + 4_096]).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let give: [&dyn Fn(&socket2::Socket); 4] = [
        &|socket| send_descriptor(socket, &null).unwrap(),
        // It has the right size, and could change it.
        &|socket| send_descriptor(socket, &memory).unwrap(),
        &|socket| _ = socket.send(&[0]).unwrap(),
        &|_| {},
    ];
    for (number, give) in give.into_iter().enumerate() {
        let (mail, inlets) = inlets();
        let (socket, listener) = handover::rogue();
        inlets.take("peer", &SegmentOffer { socket, token: [9; 16], size: 4_096 });
        let (receiver, _) = listener.accept().unwrap();
        let mut token = [0; 16];
        std::io::Read::read_exact(&mut &receiver, &mut token).unwrap();
        assert_eq!(token, [9; 16]);
        give(&receiver);
        drop(receiver);
        forget(&mail, &inlets, "peer");
        assert_eq!(mail.wait(1), [Heard::Down("peer".into())], "case {number}");
    }
}

#[test]
fn a_peer_that_gives_nothing_delays_neither_the_caller_nor_its_end() {
    let (mail, inlets) = inlets();
    let (socket, listener) = handover::rogue();
    let began = std::time::Instant::now();
    inlets.take("peer", &SegmentOffer { socket, token: [9; 16], size: 4_096 });
    forget(&mail, &inlets, "peer");
    assert!(began.elapsed() < Duration::from_secs(1), "it waited: {:?}", began.elapsed());
    let accepted = listener.accept().unwrap();
    assert_eq!(mail.wait(1), [Heard::Down("peer".into())]);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop(accepted);
}

#[test]
fn memory_that_makes_no_sense_is_read_no_further() {
    use std::sync::atomic::Ordering::SeqCst;
    let wrong: [&dyn Fn(&Segment); 5] = [
        &|segment| segment.entry(1).at.store(8 << 20, SeqCst),
        &|segment| segment.entry(1).at.store(u64::MAX, SeqCst),
        &|segment| segment.entry(1).len.store((8 << 20) + 1, SeqCst),
        &|segment| segment.entry(1).len.store(u64::MAX, SeqCst),
        &|segment| publish(segment, 1_000),
    ];
    for (number, wrong) in wrong.into_iter().enumerate() {
        let (mail, inlets) = inlets();
        let mut outlet = taken(&inlets);
        let file = outlet.segment().file().unwrap().try_clone_to_owned().unwrap();
        let segment = Segment::open(file, 8 << 20).unwrap();
        assert!(send(&mut outlet, &[1]));
        mail.wait(1);
        segment.entry(1).at.store(0, SeqCst);
        segment.entry(1).len.store(1, SeqCst);
        wrong(&segment);
        publish(&segment, segment.head().load(SeqCst).max(2));
        wait_until(|| outlet.is_declined());
        assert_eq!(mail.wait(1).len(), 1, "case {number}");
        forget(&mail, &inlets, "peer");
        assert_eq!(mail.wait(2)[1], Heard::Down("peer".into()), "case {number}");
    }
}

#[test]
fn no_file_is_left_in_the_file_system() {
    let outlet = ShmSender::new().unwrap();
    let names = std::fs::read_dir("/dev/shm").unwrap().flatten().map(|entry| entry.file_name());
    assert!(names.filter(|name| name.to_string_lossy().starts_with("kvstore")).count() == 0);
    drop(outlet);
}
