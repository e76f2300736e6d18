//! The sleep of a thread that reads from connections: until there is something to read, unless a thread of the program
//! reads in its place.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};

use crate::sys::sync::Mutex;

/// The only source.
const READINESS: Token = Token(0);
/// A descriptor of readiness is never writable: the thread hears nothing of it.
const NOTHING: Interest = Interest::WRITABLE;

/// Where the thread sleeps.
pub(super) struct GateSleeper {
    poll: Poll,
    events: Events,
}

/// Whether the thread wakes.
pub(super) struct Gate {
    registry: Registry,
    /// The descriptor of the readiness of all connections (epoll).
    source: RawFd,
    /// Number of threads of the program that read. Its lock orders what the system is told.
    pollers: Mutex<usize>,
    /// The same, to be looked at.
    count: AtomicUsize,
}

impl Gate {
    /// A gate for the readiness that a descriptor tells, which lives as long as the gate is used.
    pub(super) fn new(source: RawFd) -> io::Result<(Self, GateSleeper)> {
        let poll = Poll::new()?;
        let registry = poll.registry().try_clone()?;
        registry.register(&mut SourceFd(&source), READINESS, Interest::READABLE)?;
        let (pollers, count) = (Mutex::new(0), AtomicUsize::new(0));
        let gate = Self { registry, source, pollers, count };
        Ok((gate, GateSleeper { poll, events: Events::with_capacity(1) }))
    }

    /// A thread of the program begins to read: the thread sleeps on.
    pub(super) fn begin_polling(&self) {
        self.change(|pollers| pollers + 1);
    }

    /// It ends: the thread wakes for what is there, and for what comes.
    pub(super) fn end_polling(&self) {
        self.change(|pollers| pollers - 1);
    }

    /// Has the thread wake for what is there, although others read.
    pub(super) fn open(&self) {
        let _pollers = self.pollers.lock();
        self.tell(Interest::READABLE);
    }

    fn change(&self, change: impl FnOnce(usize) -> usize) {
        let mut pollers = self.pollers.lock();
        let before = *pollers;
        *pollers = change(before);
        // Relaxed: only a hint.
        self.count.store(*pollers, Ordering::Relaxed);
        match (before, *pollers) {
            (0, _) => self.tell(NOTHING),
            (_, 0) => self.tell(Interest::READABLE),
            _ => {}
        }
    }

    fn tell(&self, interest: Interest) {
        // It fails only for want of memory; then the thread wakes although others read, or at the end of its time.
        let _ = self.registry.reregister(&mut SourceFd(&self.source), READINESS, interest);
    }

    /// Whether a thread of the program reads, as a hint.
    pub(super) fn is_polled(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }
}

impl GateSleeper {
    /// Sleeps until there is something to read, or for `most`.
    pub(super) fn sleep(&mut self, most: Duration) -> io::Result<()> {
        self.poll.poll(&mut self.events, Some(most))
    }
}
