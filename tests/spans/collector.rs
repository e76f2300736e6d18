//! A subscriber that remembers what it was told.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry, SpanRef};

use super::common::wait::soon;

/// Fields and their values, as texts.
type Fields = BTreeMap<&'static str, String>;

/// A span or an event.
#[derive(Debug, Clone)]
pub struct Seen {
    id: u64,
    pub target: &'static str,
    /// That of the span, the message of the event.
    pub name: String,
    pub fields: Fields,
    /// The name of the span that it is in.
    pub parent: Option<&'static str>,
    pub open: bool,
}

static SEEN: Mutex<Vec<Seen>> = Mutex::new(Vec::new());

fn seen() -> MutexGuard<'static, Vec<Seen>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens for one test at a time.
pub struct Listener(#[allow(dead_code, reason = "held")] MutexGuard<'static, ()>);

#[allow(clippy::unused_self, reason = "only who listens may ask")]
impl Listener {
    pub fn start() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        static START: Once = Once::new();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        START.call_once(|| {
            tracing::subscriber::set_global_default(Registry::default().with(Collector)).unwrap();
        });
        seen().clear();
        Self(turn)
    }

    /// All of a target that have this name, in their order.
    pub fn all(&self, target: &str, name: &str) -> Vec<Seen> {
        let is = |it: &&Seen| it.target == target && it.name == name;
        seen().iter().filter(is).cloned().collect()
    }

    /// The only one.
    #[track_caller]
    pub fn one(&self, target: &str, name: &str) -> Seen {
        let mut all = self.all(target, name);
        assert_eq!(all.len(), 1, "{target} {name}: {all:?}");
        all.remove(0)
    }

    /// Every span has ended; those of other threads may take a moment.
    #[track_caller]
    pub fn check_closed(&self) {
        let open = || seen().iter().filter(|it| it.open).cloned().collect::<Vec<_>>();
        assert!(soon(Duration::from_secs(20), || open().is_empty()), "open: {:?}", open());
    }
}

impl Seen {
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", |text| text)
    }

    pub fn number(&self, name: &str) -> u64 {
        self.field(name).parse().unwrap_or_else(|_| panic!("{name} of {self:?}"))
    }
}

struct Collector;

struct Reading<'a>(&'a mut Fields);

impl Visit for Reading<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

fn name_of<S: for<'a> LookupSpan<'a>>(span: &SpanRef<'_, S>) -> &'static str {
    span.metadata().name()
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collector {
    fn enabled(&self, about: &Metadata<'_>, _: Context<'_, S>) -> bool {
        ["kvstore", "spans"].iter().any(|ours| about.target().starts_with(ours))
    }

    fn on_new_span(&self, about: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::new();
        about.record(&mut Reading(&mut fields));
        let span = context.span(id).unwrap();
        let parent = span.parent().map(|parent| name_of(&parent));
        let (target, name) = (about.metadata().target(), name_of(&span).into());
        seen().push(Seen { id: id.into_u64(), target, name, fields, parent, open: true });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut seen = seen();
        // A span that began before the test did is nobody's.
        if let Some(span) = seen.iter_mut().find(|it| it.open && it.id == id.into_u64()) {
            values.record(&mut Reading(&mut span.fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Reading(&mut fields));
        let name = fields.remove("message").unwrap_or_default();
        let parent = context.event_span(event).map(|parent| name_of(&parent));
        let target = event.metadata().target();
        seen().push(Seen { id: 0, target, name, fields, parent, open: false });
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let mut seen = seen();
        if let Some(span) = seen.iter_mut().find(|it| it.open && it.id == id.into_u64()) {
            span.open = false;
        }
    }
}
