//! Threads of the program that read rings.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crate::sys::processors;
use crate::transport::mail::wait_for;
use crate::transport::polling::{PolledCall, Polling};
use crate::transport::shm::{SegmentOffer, ShmReceivers, ShmSender};
use crate::transport::{Inbox, Piece};

/// Lengths of what has arrived, and the threads that have delivered it.
#[derive(Default)]
struct Threads(Mutex<Vec<(usize, ThreadId)>>);

impl Inbox for Threads {
    fn arrived(&self, _: &str, len: usize, pieces: &mut dyn Iterator<Item = Piece<'_>>) {
        pieces.for_each(drop);
        self.0.lock().unwrap().push((len, std::thread::current().id()));
    }

    fn down(&self, _: &str) {}
}

struct Pair {
    inbox: Arc<Threads>,
    receivers: ShmReceivers,
    sender: ShmSender,
}

impl Pair {
    /// A sender and the receiver of its ring, whose thread sleeps.
    fn new() -> Self {
        let inbox = Arc::new(Threads::default());
        let receivers = ShmReceivers::new(inbox.clone());
        let sender = ShmSender::new().unwrap();
        receivers.take("peer", &SegmentOffer::decode(&sender.offer().encode()).unwrap());
        let pair = Self { inbox, receivers, sender };
        pair.wait_until(|pair| pair.sender.segment().must_wake());
        pair
    }

    fn wait_until(&self, ready: impl Fn(&Self) -> bool) {
        wait_for(|| ready(self).then_some(()));
    }

    /// Polls on this thread; other tests may hold the slots.
    fn polling(&self) -> Polling {
        self.polling_for(PolledCall::SMALL)
    }

    fn polling_for(&self, call: PolledCall) -> Polling {
        wait_for(|| Some(self.begin(call)).filter(Polling::is_admitted))
    }

    fn begin(&self, call: PolledCall) -> Polling {
        let mut polling = Polling::of(call);
        self.receivers.add_to(&mut polling);
        polling.started()
    }

    fn send(&mut self, len: usize) {
        let mut claim = self.sender.claim(len).unwrap();
        claim.write(0, &vec![7; len]);
        self.sender.publish(&claim, len);
    }

    fn heard(&self) -> usize {
        self.inbox.0.lock().unwrap().len()
    }

    /// The thread that has delivered the last piece.
    fn last(&self) -> ThreadId {
        self.inbox.0.lock().unwrap().last().unwrap().1
    }
}

#[test]
fn a_waiting_thread_reads_small_pieces_and_the_ring_s_thread_all_others() {
    if processors() < 2 {
        return;
    }
    let (mut pair, own) = (Pair::new(), std::thread::current().id());
    let polling = pair.polling();
    pair.send(100);
    assert!(!pair.sender.segment().must_wake(), "a thread polls");
    polling.look();
    assert_eq!((pair.heard(), pair.last()), (1, own));
    pair.send(1 << 20);
    pair.wait_until(|pair| {
        polling.look();
        pair.heard() == 2
    });
    assert_ne!(pair.last(), own, "while it copies, this thread could do something else");
    // What has arrived by the end is read then, or by the thread of the ring.
    pair.send(5);
    drop(polling);
    pair.wait_until(|pair| pair.heard() == 3);
    pair.send(6);
    pair.wait_until(|pair| pair.heard() == 4);
    assert_ne!(pair.last(), own);
}

#[test]
fn where_each_worker_has_one_processor_a_thread_that_takes_turns_reads_large_pieces() {
    let (mut pair, own) = (Pair::new(), std::thread::current().id());
    // The other call is small, so that the thread polls for it.
    let more_than_rings = pair.polling_for(PolledCall { bytes: 0, others: 2 });
    assert!(!more_than_rings.takes_turns(), "some peer is not on this machine");
    drop(more_than_rings);
    let more_than_rings = PolledCall { bytes: 1 << 20, others: 2 };
    assert!((0..100).all(|_| !pair.begin(more_than_rings).is_admitted()));
    let polling = pair.polling_for(PolledCall { bytes: 1 << 20, others: 1 });
    assert!(polling.takes_turns());
    pair.send(1 << 20);
    pair.wait_until(|pair| {
        polling.look();
        pair.heard() == 1
    });
    assert_eq!(pair.last() == own, processors() <= 2);
    // The thread of the ring reads again.
    drop(polling);
    pair.send(1 << 20);
    pair.wait_until(|pair| pair.heard() == 2);
    assert_ne!(pair.last(), own);
}

#[test]
fn a_thread_that_is_about_to_wait_lets_receivers_sleep_for_a_moment() {
    if processors() < 2 {
        return;
    }
    let (mut pair, other) = (Pair::new(), Pair::new());
    for waits in [false, true] {
        pair.wait_until(|pair| pair.sender.segment().must_wake());
        let before = pair.heard();
        let polling = other.polling();
        pair.send(10);
        assert!(pair.sender.segment().must_wake() && pair.sender.segment().has_unread());
        if waits {
            polling.wait(|| pair.heard() > before);
        } else {
            drop(polling);
        }
        pair.wait_until(|pair| pair.heard() > before);
    }
}

#[test]
fn no_wake_up_is_lost_while_threads_begin_and_end_to_poll() {
    let mut pair = Pair::new();
    let is_over = AtomicBool::new(false);
    let (receivers, is_over) = (&pair.receivers, &is_over);
    std::thread::scope(|scope| {
        for wait in [0, 3, 50] {
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let mut polling = Polling::of(PolledCall::SMALL);
                    receivers.add_to(&mut polling);
                    let polling = polling.started();
                    polling.wait(|| is_over.load(Ordering::Relaxed));
                    std::thread::sleep(Duration::from_micros(wait));
                }
            });
        }
        let (sender, inbox) = (&mut pair.sender, &pair.inbox);
        for number in 1..=5_000 {
            let len = if number % 50 == 0 { 1 << 18 } else { 20 };
            let claim = sender.claim(len).unwrap();
            sender.publish(&claim, len);
            let end = Instant::now() + Duration::from_secs(20);
            while inbox.0.lock().unwrap().len() < number {
                assert!(Instant::now() < end, "piece {number} was not read");
                std::thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
