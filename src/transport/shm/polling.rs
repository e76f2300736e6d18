//! Polling by threads of the program: one that makes a call whose result comes from another process reads small
//! pieces itself, so that no thread is woken for them; with few processors large ones too. It also lets the threads of other receivers sleep for a
//! moment: their callers, too, are about to read.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

use smallvec::SmallVec;

use super::ring::{Ring, SMALL};
use super::segment::Segment;
use crate::sys::processors;
use crate::sys::spin::Spin;
use crate::transport::Inbox;
use crate::transport::adaptive_wait::PollerGuard;

/// Maximum number of rings that a thread polls.
pub(super) const MOST_RINGS: usize = 8;

/// Looks after which a thread wakes the receivers that it has let sleep: some microseconds.
const PATIENCE: u32 = 64;

/// Looks for what has arrived since, at the end: the messages of a next call.
const LAST_LOOKS: usize = 2;

/// Rings, with their memory.
pub(super) type PolledRings = SmallVec<[(Arc<Ring>, Arc<Segment>); MOST_RINGS]>;

thread_local! {
    /// Rings whose receivers this thread is to wake; None while it wakes them at once.
    static OWED: RefCell<Option<SmallVec<[Arc<Segment>; MOST_RINGS]>>> = const { RefCell::new(None) };
}

/// A call of a thread of the program, from before it sends until it has its result or sleeps. Belongs to the thread.
pub(crate) struct Polling {
    rings: PolledRings,
    inbox: Option<Arc<dyn Inbox>>,
    /// None if the thread does not poll.
    guard: Option<PollerGuard<'static>>,
    /// Whether it waits for workers that make the same call.
    takes_turns: bool,
    of_thread: PhantomData<*const ()>,
}

impl Polling {
    /// Begins to poll no rings, unless other threads poll already.
    pub(crate) fn begin() -> Self {
        let guard = PollerGuard::of_caller();
        if guard.is_some() {
            // A thread that is ending wakes at once.
            let _ = OWED.try_with(|owed| _ = owed.borrow_mut().get_or_insert_default());
        }
        Self {
            rings: SmallVec::new(),
            inbox: None,
            guard,
            takes_turns: false,
            of_thread: PhantomData,
        }
    }

    /// Polls for longer, if what is waited for comes over rings from all of `others` workers: they make the same
    /// call, and may need this processor for it. Where each worker of the machine has no more than one, it reads large
    /// pieces too: the threads of its rings have none of their own.
    pub(crate) fn taking_turns(mut self, others: usize) -> Self {
        self.takes_turns = self.guard.is_some() && self.rings.len() >= others.min(MOST_RINGS);
        if self.reads_all() {
            self.rings.iter().for_each(|(ring, _)| ring.begin_reading_all());
        }
        self
    }

    pub(crate) fn takes_turns(&self) -> bool {
        self.takes_turns
    }

    fn reads_all(&self) -> bool {
        self.takes_turns && processors() <= self.rings.len() + 1
    }

    /// Begins to poll rings.
    pub(super) fn of(inbox: &Arc<dyn Inbox>, rings: impl FnOnce() -> PolledRings) -> Self {
        let mut polling = Self::begin();
        if polling.guard.is_some() {
            (polling.rings, polling.inbox) = (rings(), Some(Arc::clone(inbox)));
            polling.rings.iter().for_each(|(ring, segment)| ring.begin_polling(segment));
        }
        polling
    }

    /// Polls until `is_there`, or until it is time to sleep.
    pub(crate) fn wait(self, is_there: impl Fn() -> bool) {
        if self.guard.is_none() {
            return;
        }
        let spin = if self.takes_turns { Spin::taking_turns() } else { Spin::yielding() };
        let (mut spin, mut looks) = (spin, 0);
        while !is_there() && spin.wait() {
            self.look();
            looks += 1;
            if looks == PATIENCE {
                wake_owed();
            }
        }
    }

    fn look(&self) {
        let Some(inbox) = &self.inbox else { return };
        let most = if self.reads_all() { usize::MAX } else { SMALL };
        self.rings.iter().for_each(|(ring, segment)| ring.poll(segment, most, &**inbox));
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        if self.guard.is_some() {
            (0..LAST_LOOKS).for_each(|_| self.look());
            for (ring, segment) in &self.rings {
                if self.reads_all() {
                    ring.end_reading_all();
                }
                ring.end_polling(segment);
            }
            wake_owed();
        }
    }
}

/// Wakes the receivers that have not read meanwhile; from now on this thread wakes at once.
fn wake_owed() {
    let owed = OWED.try_with(RefCell::take).ok().flatten();
    for segment in owed.into_iter().flatten() {
        if segment.must_wake() && segment.has_unread() {
            segment.wake();
        }
    }
}

/// Wakes the receiver of a ring, now or soon.
pub(super) fn wake(segment: &Arc<Segment>) {
    let is_owed = OWED.try_with(|owed| {
        let mut owed = owed.borrow_mut();
        let list = owed.as_mut();
        list.map(|list| list.push(Arc::clone(segment))).is_some()
    });
    if !is_owed.unwrap_or(false) {
        segment.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::ThreadId;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::sys::processors;
    use crate::transport::Piece;
    use crate::transport::mail::wait_for;
    use crate::transport::shm::{SegmentOffer, ShmReceivers, ShmSender};

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
            wait_for(|| Some(self.receivers.polling()).filter(|it| it.guard.is_some()))
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
        let more_than_rings = pair.polling().taking_turns(2);
        assert!(!more_than_rings.takes_turns(), "some peer is not on this machine");
        drop(more_than_rings);
        let polling = pair.polling().taking_turns(1);
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
                        let polling = receivers.polling();
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
}
