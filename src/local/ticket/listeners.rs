//! Who is told of the end of an operation: callbacks, and a list of ended operations with a descriptor
//! that can be polled. Also called: completion queue.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use smallvec::SmallVec;

use super::calls::{CallThread, DoneCall, DoneCallback};
use super::outcome::Outcomes;
use crate::error::{Result, fail};
use crate::local::table::KeyHasher;
use crate::sys::sync::Arc;

/// One registration of an operation.
pub(super) enum Listener {
    Call(DoneCallback),
    /// The list of ended operations.
    List,
}

pub(super) struct Listeners {
    by_sequence: HashMap<u64, SmallVec<[Listener; 1]>, BuildHasherDefault<KeyHasher>>,
    pub(super) calls: Arc<CallThread>,
    pub(super) ended: EndedList,
}

/// Operations that have ended and were not taken yet, oldest first.
#[derive(Default)]
pub(super) struct EndedList {
    entries: VecDeque<(u64, Result<()>)>,
    signal: Option<Signal>,
}

/// A descriptor that is readable while the list has entries: there is one byte in it then.
///
/// Two sockets, as an `eventfd` is not known to all systems. They close with an exec, by the standard
/// library.
struct Signal {
    reader: UnixStream,
    writer: UnixStream,
}

impl Listeners {
    /// Of the store with this serial number.
    pub(super) fn new(store: u64) -> Self {
        let calls = Arc::new(CallThread::new(store));
        Self { by_sequence: HashMap::default(), calls, ended: EndedList::default() }
    }

    /// Whether no operation is listened to: all that most programs ask.
    pub(super) fn is_empty(&self) -> bool {
        self.by_sequence.is_empty()
    }

    pub(super) fn add(&mut self, sequence: u64, listener: Listener) {
        self.by_sequence.entry(sequence).or_default().push(listener);
    }

    /// Passes on the end of an operation.
    pub(super) fn tell(&mut self, sequence: u64, ticket: u64, outcomes: &mut Outcomes) {
        for listener in self.by_sequence.remove(&sequence).into_iter().flatten() {
            match listener {
                Listener::Call(callback) => {
                    let result = outcomes.result(sequence);
                    self.calls.queue(DoneCall { ticket, result, callback });
                }
                Listener::List => self.ended.push(ticket, outcomes.look(sequence)),
            }
        }
    }
}

impl EndedList {
    pub(super) fn push(&mut self, ticket: u64, result: Result<()>) {
        self.entries.push_back((ticket, result));
        if self.entries.len() == 1
            && let Some(signal) = &self.signal
        {
            signal.set();
        }
    }

    pub(super) fn take(&mut self) -> Option<(u64, Result<()>)> {
        let entry = self.entries.pop_front();
        if entry.is_some()
            && self.entries.is_empty()
            && let Some(signal) = &self.signal
        {
            signal.clear();
        }
        entry
    }

    /// The descriptor, which lives until [`EndedList::close`].
    pub(super) fn descriptor(&mut self) -> Result<RawFd> {
        if let Some(signal) = &self.signal {
            return Ok(signal.reader.as_raw_fd());
        }
        let signal = Signal::open()
            .map_err(|error| fail!(OutOfMemory, "event_fd: no descriptor is to be had: {error}"))?;
        if !self.entries.is_empty() {
            signal.set();
        }
        Ok(self.signal.insert(signal).reader.as_raw_fd())
    }

    /// Closes the descriptor.
    pub(super) fn close(&mut self) {
        self.signal = None;
    }
}

impl Signal {
    fn open() -> std::io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        // A program that reads the byte itself keeps no thread of ours waiting for it.
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        Ok(Self { reader, writer })
    }

    fn set(&self) {
        // There is room for a byte: the one before has been read.
        let _ = (&self.writer).write(&[1]);
    }

    fn clear(&self) {
        let _ = (&self.reader).read(&mut [0; 1]);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Whether the descriptor is readable, without a change of it.
    fn is_readable(list: &EndedList) -> bool {
        let Some(signal) = &list.signal else { return false };
        let has_byte = (&signal.reader).read(&mut [0; 1]).is_ok();
        if has_byte {
            signal.set();
        }
        has_byte
    }

    #[test]
    fn the_descriptor_is_readable_while_the_list_has_entries() {
        let mut list = EndedList::default();
        assert!(list.take().is_none());
        list.push(7, Ok(()));
        let descriptor = list.descriptor().unwrap();
        assert!(is_readable(&list));
        list.push(8, Err(fail!(Callback, "no")));
        assert_eq!(list.descriptor().unwrap(), descriptor);
        assert_eq!(list.take().unwrap().0, 7);
        assert!(is_readable(&list));
        let (ticket, result) = list.take().unwrap();
        assert_eq!((ticket, result.unwrap_err().message()), (8, "no"));
        assert!(!is_readable(&list));
        list.push(9, Ok(()));
        assert!(is_readable(&list));
    }
}
