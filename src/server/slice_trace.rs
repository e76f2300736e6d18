//! Notes when a server works on a slice: in the rounds that are traced, and for whoever listens.

use std::sync::Arc;

use crate::spans::{self, Entered};
use crate::trace::{Event, Tracer, What};

/// The steps of one slice.
#[derive(Default)]
pub(super) struct Steps {
    pub(super) tracer: Option<Arc<Tracer>>,
    pub(super) key: u64,
    pub(super) slice: u32,
}

/// A step, until it goes.
pub(super) struct Step<'a> {
    traced: Option<(&'a Tracer, Event)>,
    _span: Entered,
}

impl Steps {
    pub(super) fn begin(&self, what: What, round: u64) -> Step<'_> {
        let event = Event::new(what, self.key, self.slice, round);
        let tracer = self.tracer.as_deref().filter(|it| it.wants(round));
        let traced = tracer.map(|it| (it, Event { begin: it.now(), ..event }));
        Step { traced, _span: spans::work(what == What::Sum, self.key, self.slice, round) }
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if let Some((tracer, event)) = self.traced {
            tracer.add(Event { end: tracer.now(), ..event });
        }
    }
}
