//! Notes when a server works on a slice, in the rounds that are traced.

use std::sync::Arc;

use crate::trace::{Event, Tracer, What};

/// The steps of one slice.
pub(super) struct Steps {
    pub(super) tracer: Arc<Tracer>,
    pub(super) key: u64,
    pub(super) slice: u32,
}

impl Steps {
    /// A step begins, if it is to be noted.
    pub(super) fn begin(&self, what: What, round: u64) -> Option<Event> {
        let event = Event::new(what, self.key, self.slice, round);
        self.tracer.wants(round).then(|| Event { begin: self.tracer.now(), ..event })
    }

    pub(super) fn end(&self, event: Event) {
        self.tracer.add(Event { end: self.tracer.now(), ..event });
    }
}
