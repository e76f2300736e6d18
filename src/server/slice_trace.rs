//! Trace spans of the tasks of a slice: in the traced rounds, and for subscribers of `tracing`.

use std::sync::Arc;

use crate::spans::{self, Entered};
use crate::trace::{TraceEvent, TraceKind, Tracer};

/// Trace settings of one slice.
#[derive(Default)]
pub(super) struct SliceTrace {
    pub(super) tracer: Option<Arc<Tracer>>,
    pub(super) key: u64,
    pub(super) slice: u32,
}

/// Guard of a task's span; the drop ends the span.
pub(super) struct TracedStep<'a> {
    traced: Option<(&'a Tracer, TraceEvent)>,
    _span: Entered,
}

impl SliceTrace {
    pub(super) fn begin(&self, what: TraceKind, round: u64) -> TracedStep<'_> {
        let event = TraceEvent::new(what, self.key, self.slice, round);
        let tracer = self.tracer.as_deref().filter(|it| it.wants(round));
        let traced = tracer.map(|it| (it, TraceEvent { begin: it.now(), ..event }));
        TracedStep {
            traced,
            _span: spans::work(what == TraceKind::Sum, self.key, self.slice, round),
        }
    }
}

impl Drop for TracedStep<'_> {
    fn drop(&mut self) {
        if let Some((tracer, event)) = self.traced {
            tracer.add(TraceEvent { end: tracer.now(), ..event });
        }
    }
}
