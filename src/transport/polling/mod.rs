//! Polling: a thread reads for a while what arrives, before it sleeps, as waking it takes longer than the transfer of
//! many a message.
//!
//! A thread of the program that makes a call whose result comes from another process reads small pieces itself, so
//! that no thread is woken for them; with few processors large ones too. It also lets the threads of receivers in
//! other processes sleep for a moment: their callers, too, are about to read. Threads of transports poll as
//! [`AdaptiveWait`] says.

mod adaptive_wait;

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::sys::processors;
use crate::sys::spin::Spin;
pub(super) use adaptive_wait::AdaptiveWait;
use adaptive_wait::PollerGuard;

/// Maximum number of sources that a thread polls.
const MOST_SOURCES: usize = 8;

/// Maximum length in bytes of a small piece: reading it takes no longer than a wake-up.
pub(super) const SMALL: usize = 32 << 10;

/// Maximum number of bytes of a call whose caller polls beside the threads of the transports. With more, they need
/// its processor, and waking it takes little of the time.
pub(crate) const POLLED: usize = 16 << 10;
/// The same where the caller hears all workers that make the call.
const POLLED_TOGETHER: usize = 1 << 20;

/// Looks after which a thread wakes the receivers that it has let sleep: some microseconds.
const PATIENCE: u32 = 64;

/// Looks for what has arrived since, at the end: the messages of a next call.
const LAST_LOOKS: usize = 2;

/// Where messages of other processes arrive, for a thread of the program that reads them. `all` of them, or, where
/// lengths are known before, small pieces alone.
pub(super) trait PolledSource: Send + Sync {
    /// A thread begins to read: that of the transport need not wake for what arrives.
    fn begin(&self, all: bool);

    /// Delivers what has arrived.
    fn look(&self, all: bool);

    /// It ends: the thread of the transport reads what is left, and what comes.
    fn end(&self, all: bool);
}

/// A receiver in another process, whose thread sleeps.
pub(super) trait SleepingReceiver {
    /// Wakes it, unless it has read meanwhile.
    fn wake_if_behind(&self);
}

/// What a polling thread waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PolledCall {
    /// Bytes of its largest array.
    pub(crate) bytes: usize,
    /// Number of other workers that make the same call, and wait for each other.
    pub(crate) others: usize,
}

impl PolledCall {
    /// A call of few bytes whose result comes from a server.
    pub(crate) const SMALL: Self = Self { bytes: 0, others: 0 };
}

type SleepingReceivers = SmallVec<[Arc<dyn SleepingReceiver>; MOST_SOURCES]>;

thread_local! {
    /// Receivers that this thread is to wake; None while it wakes them at once.
    static OWED: RefCell<Option<SleepingReceivers>> = const { RefCell::new(None) };
}

/// A call of a thread of the program, from before it sends until it has its result or sleeps. Belongs to the thread.
pub(crate) struct Polling {
    call: PolledCall,
    sources: SmallVec<[Arc<dyn PolledSource>; MOST_SOURCES]>,
    /// Number of other processes whose messages arrive there.
    peers: usize,
    /// Whether the thread waits for workers that make the same call, and hears all of them: it polls for longer, as they
    /// may need this processor.
    takes_turns: bool,
    reads_all: bool,
    /// None if the thread does not poll.
    guard: Option<PollerGuard<'static>>,
    of_thread: PhantomData<*const ()>,
}

impl Polling {
    /// Prepares to poll for a call, unless other threads poll already.
    pub(super) fn of(call: PolledCall) -> Self {
        let guard = PollerGuard::of_caller();
        if guard.is_some() {
            // A thread that is ending wakes at once.
            let _ = OWED.try_with(|owed| _ = owed.borrow_mut().get_or_insert_default());
        }
        Self {
            call,
            sources: SmallVec::new(),
            peers: 0,
            takes_turns: false,
            reads_all: false,
            guard,
            of_thread: PhantomData,
        }
    }

    /// Begins to poll for a call without anything to read, unless other threads poll already.
    pub(crate) fn begin(call: PolledCall) -> Self {
        Self::of(call).started()
    }

    /// Whether the thread polls.
    pub(super) fn is_admitted(&self) -> bool {
        self.guard.is_some()
    }

    /// Adds a source, which has the messages of so many peers.
    pub(super) fn add(&mut self, source: Arc<dyn PolledSource>, peers: usize) {
        if self.is_admitted() && self.sources.len() < MOST_SOURCES {
            self.sources.push(source);
            self.peers += peers;
        }
    }

    /// Whether the thread may read pieces of unknown length of so many further peers.
    pub(super) fn may_read_from(&self, peers: usize) -> bool {
        self.call.bytes <= SMALL || self.may_read_all(self.peers + peers)
    }

    /// Where each worker of a call has no more than one processor of this machine, the thread reads large pieces too:
    /// the threads of the transports have none of their own.
    fn may_read_all(&self, peers: usize) -> bool {
        let others = self.call.others;
        others > 0 && peers >= others.min(MOST_SOURCES) && processors() <= peers + 1
    }

    /// Begins, unless the call has so many bytes that its thread had better sleep.
    pub(super) fn started(mut self) -> Self {
        if !self.is_admitted() {
            return self;
        }
        let others = self.call.others;
        self.takes_turns = others > 0 && self.peers >= others.min(MOST_SOURCES);
        self.reads_all = self.may_read_all(self.peers);
        let most = if self.takes_turns { POLLED_TOGETHER } else { POLLED };
        if self.call.bytes > most && !self.reads_all {
            return self.declined();
        }
        self.sources.iter().for_each(|source| source.begin(self.reads_all));
        self
    }

    /// The thread will not poll: its slot is free, and it owes no wake-up.
    fn declined(mut self) -> Self {
        self.sources.clear();
        self.guard = None;
        wake_owed();
        self
    }

    #[cfg(test)]
    pub(super) fn takes_turns(&self) -> bool {
        self.takes_turns
    }

    /// Polls until `is_there`, or until it is time to sleep.
    pub(crate) fn wait(self, is_there: impl Fn() -> bool) {
        if !self.is_admitted() {
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

    /// Reads what has arrived.
    pub(super) fn look(&self) {
        self.sources.iter().for_each(|source| source.look(self.reads_all));
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        if self.is_admitted() {
            (0..LAST_LOOKS).for_each(|_| self.look());
            self.sources.iter().for_each(|source| source.end(self.reads_all));
            wake_owed();
        }
    }
}

/// Wakes the receivers that have not read meanwhile; from now on this thread wakes at once.
fn wake_owed() {
    let owed = OWED.try_with(RefCell::take).ok().flatten();
    owed.iter().flatten().for_each(|receiver| receiver.wake_if_behind());
}

/// Wakes a sleeping receiver soon; false if it is to be woken now.
pub(super) fn wake_later(receiver: &Arc<impl SleepingReceiver + 'static>) -> bool {
    let is_owed = OWED.try_with(|owed| {
        let mut owed = owed.borrow_mut();
        let list = owed.as_mut();
        list.map(|list| list.push(Arc::clone(receiver) as Arc<dyn SleepingReceiver>)).is_some()
    });
    is_owed.unwrap_or(false)
}
