//! Spans and events for subscribers of the crate `tracing`: calls, a server's work, and changes of
//! a job. Also called: structured tracing, instrumentation.
//!
//! Without a subscriber each of them costs one relaxed load. A subscriber is the host's code: it is
//! never called while the machine of the protocol is locked.

use std::sync::Arc;

use tracing::field::Empty;
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};
use tracing::span::EnteredSpan;
use tracing::{Level, Span, debug, debug_span, trace, trace_span};

use crate::error::Result;
use crate::key::{Key, KeyNames};
use kvstore_protocol::{Ended, Peer, PeerEvent};

pub(crate) const CALL: &str = "kvstore::call";
const SERVER: &str = "kvstore::server";
const JOB: &str = "kvstore::job";

/// Whether a subscriber may be interested in this level.
#[inline]
pub(crate) fn listens(level: Level) -> bool {
    // One relaxed load, as the macros of `tracing` do.
    level <= STATIC_MAX_LEVEL && level <= LevelFilter::current()
}

/// A span that this thread is inside of until the guard is dropped.
pub(crate) type Entered = Option<EnteredSpan>;

/// Enters the span of a call without values.
macro_rules! enter {
    ($name:literal $(, $($fields:tt)*)?) => {
        $crate::spans::listens(tracing::Level::DEBUG).then(|| {
            tracing::debug_span!(target: $crate::spans::CALL, $name $(, $($fields)*)?).entered()
        })
    };
}
pub(crate) use enter;

/// Enters the span of a call with values or outs.
#[inline]
pub(crate) fn call(
    name: &str,
    names: &KeyNames,
    keys: &[Key],
    bytes: impl FnOnce() -> usize,
) -> Entered {
    listens(Level::DEBUG).then(|| data_span(name, names, keys, bytes()).entered())
}

#[cold]
fn data_span(name: &str, names: &KeyNames, keys: &[Key], bytes: usize) -> Span {
    let first = keys.first().copied();
    // Fields are made only if the subscriber wants this span.
    macro_rules! span {
        ($($name:literal)*) => {
            match name {
                $($name => debug_span!(
                    target: CALL,
                    $name,
                    key = first.map(Key::id),
                    name = Empty,
                    keys = keys.len(),
                    bytes,
                    round = Empty,
                    ticket = Empty,
                ),)*
                _ => Span::none(),
            }
        };
    }
    let span = span!("init" "push" "pull" "pushpull" "broadcast" "push_rows" "pull_rows");
    if let Some(key) = first.filter(|key| key.is_name() && !span.is_disabled()) {
        names.with(key, |name| _ = span.record("name", &*name.to_string_lossy()));
    }
    span
}

/// Records the ticket of a call.
pub(crate) fn note_ticket(span: &Entered, ticket: &Result<u64>) {
    if let (Some(span), Ok(ticket)) = (span, ticket) {
        span.record("ticket", ticket);
    }
}

/// The span of a call, for work that continues after the call has returned. Small, and often empty.
#[derive(Clone, Default)]
pub(crate) struct Carried(Option<Arc<Span>>);

impl Carried {
    /// The span that this thread is inside of, if it is a call's.
    pub(crate) fn current() -> Self {
        if !listens(Level::DEBUG) {
            return Self(None);
        }
        let span = Span::current();
        let is_ours = span.metadata().is_some_and(|about| about.target() == CALL);
        Self(is_ours.then(|| Arc::new(span)))
    }

    /// Whether there is a span.
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Runs a closure inside the span.
    pub(crate) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(span) => span.in_scope(work),
            None => work(),
        }
    }

    /// Records that one key of the call has ended; its round is the call's if it is the only key.
    pub(crate) fn ended(&self, ended: &Ended, ok: bool, only: bool) {
        let Some(span) = &self.0 else { return };
        let Ended { call, key, round, .. } = *ended;
        let key = call.has_key().then_some(key);
        if only && round > 0 {
            span.record("round", round);
        }
        trace!(target: CALL, parent: &**span, call = call.name(), key, round, ok, "ended");
    }
}

/// Enters the span of a server's work on a slice.
#[inline]
pub(crate) fn work(is_sum: bool, key: u64, slice: u32, round: u64) -> Entered {
    // A root span: the current span is the transport's and unrelated.
    listens(Level::TRACE).then(|| {
        let span = if is_sum {
            trace_span!(target: SERVER, parent: None, "sum", key, slice, round)
        } else {
            trace_span!(target: SERVER, parent: None, "update", key, slice, round)
        };
        span.entered()
    })
}

/// Reports a change in the job, as one of its processes sees it.
pub(crate) fn tell(me: Peer, event: &PeerEvent) {
    match event {
        PeerEvent::Up(peer, address) => {
            debug!(target: JOB, parent: None, %me, %peer, %address, "connected");
        }
        PeerEvent::Down(peer) => debug!(target: JOB, parent: None, %me, %peer, "disconnected"),
        PeerEvent::Epoch(epoch) => debug!(target: JOB, parent: None, %me, epoch, "epoch"),
        // All other events are for the log or the trace file only.
        _ => {}
    }
}
