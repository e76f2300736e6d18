//! One comparison: calls of stores with different rules and threads, and the limits of the machine,
//! all in turn.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde_json::{Value, json};

use crate::limits::{Limits, Rates, Way};
use crate::memory::{self, MALLOC};
use crate::page;
use crate::report::Report;
use crate::store::{Rule, Setting, Store};
use crate::tensors::{DType, Keys, List};
use crate::timing::{Subject, TRIES, medians, timed};

/// The longest array whose calls are compared with a triad alone: that a store should reach in the
/// caches, where copying is another matter than computing.
pub const IN_CACHE: usize = 1 << 16;

/// The arrays of the limits for a list of keys: far beyond the caches.
pub const LARGE: usize = 1 << 24;

/// The most floats of all keys together in a quick run: ResNet-50 has fewer.
const QUICK_MOST: usize = 1 << 25;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Push,
    Pull,
    PushThenPull,
    PushPull,
}

impl Call {
    pub fn name(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pull => "pull",
            Self::PushThenPull => "push + pull",
            Self::PushPull => "pushpull",
        }
    }
}

/// What a store is asked to do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Case {
    pub dtype: DType,
    /// Where the caller's arrays start: bytes past a multiple of 64.
    pub offset: usize,
    pub threads: usize,
    pub values: usize,
    pub rule: Rule,
    pub setting: Setting,
    pub call: Call,
    pub outs: usize,
}

impl Case {
    pub const BASE: Self = Self {
        dtype: DType::F32,
        offset: MALLOC,
        threads: 1,
        values: 1,
        rule: Rule::Assign,
        setting: Setting::Usual,
        call: Call::Push,
        outs: 0,
    };

    /// How many arrays of the keys' size any implementation must read or write: each value, each
    /// out, the stored value and the rule's state.
    pub fn arrays(&self) -> usize {
        let push = self.values + self.rule.arrays();
        match self.call {
            Call::Push => push,
            Call::Pull => 1 + self.outs,
            Call::PushThenPull => push + 1 + self.outs,
            Call::PushPull => push + self.outs,
        }
    }

    /// What is made for it: lists, a store, and limits for arrays of so many floats.
    fn values(&self) -> ListKey {
        (self.dtype, self.offset, self.values)
    }

    fn outs(&self) -> ListKey {
        (self.dtype, self.offset, self.outs)
    }

    fn store(&self) -> StoreKey {
        (self.dtype, self.threads, self.rule, self.setting)
    }

    fn limit(&self, keys: &Keys) -> LimitKey {
        let one = keys.elements() * self.dtype.bytes() / 4;
        (self.threads, if keys.count() > 1 { LARGE } else { one })
    }
}

/// The time of a case, and the limits that were measured in turn with it.
#[derive(Clone)]
pub struct Measured {
    pub group: &'static str,
    pub keys: String,
    pub count: usize,
    pub elements: usize,
    pub case: Case,
    pub seconds: f64,
    pub rates: Rates,
}

impl Measured {
    pub fn bytes(&self) -> f64 {
        (self.case.arrays() * self.elements * self.case.dtype.bytes()) as f64
    }

    pub fn rate(&self) -> f64 {
        self.bytes() / self.seconds
    }

    /// Bytes a second that the machine can move in arrays of this size.
    pub fn limit(&self) -> f64 {
        if self.elements <= IN_CACHE { self.rates.of(Way::Triad) } else { self.rates.best() }
    }

    pub fn ratio(&self) -> f64 {
        self.rate() / self.limit()
    }

    /// Nanoseconds of a call beyond its bytes at nine tenths of the limit.
    pub fn above_ns(&self) -> f64 {
        let calls = if self.case.call == Call::PushThenPull { 2.0 } else { 1.0 };
        (self.seconds - self.bytes() / (0.9 * self.limit())) * 1e9 / calls
    }

    pub fn ns_per_key(&self) -> f64 {
        self.seconds * 1e9 / self.count as f64
    }

    fn facts(&self) -> Value {
        let case = &self.case;
        json!({
            "group": self.group, "keys": self.keys, "count": self.count,
            "elements": self.elements, "dtype": case.dtype.name(), "offset_bytes": case.offset,
            "threads": case.threads, "values": case.values, "rule": case.rule.name(),
            "setting": case.setting.name(),
            "call": case.call.name(), "outs": case.outs, "seconds": self.seconds,
            "bytes": self.bytes(), "bytes_per_s": self.rate(),
            "limit_bytes_per_s": self.limit(), "ratio": self.ratio(),
            "copy_bytes_per_s": self.rates.of(Way::Copy),
            "triad_bytes_per_s": self.rates.of(Way::Triad),
            "streaming_triad_bytes_per_s": self.rates.of(Way::StreamingTriad),
        })
    }
}

type ListKey = (DType, usize, usize);
type StoreKey = (DType, usize, Rule, Setting);
type LimitKey = (usize, usize);

/// What a comparison must make: each thing once, however many cases use it.
struct Needs {
    values: BTreeSet<ListKey>,
    outs: BTreeSet<ListKey>,
    stores: BTreeSet<StoreKey>,
    limits: BTreeSet<LimitKey>,
}

impl Needs {
    fn of(keys: &Keys, cases: &[Case]) -> Self {
        Self {
            values: cases.iter().map(Case::values).collect(),
            outs: cases.iter().map(Case::outs).collect(),
            stores: cases.iter().map(Case::store).collect(),
            limits: cases.iter().map(|case| case.limit(keys)).collect(),
        }
    }

    fn bytes(&self, keys: &Keys) -> usize {
        let lists = self.values.iter().chain(&self.outs);
        let lists: usize = lists.map(|(dtype, _, copies)| dtype.bytes() * copies).sum();
        let stores = self.stores.iter().map(|(dtype, _, rule, _)| dtype.bytes() * rule.kept());
        let limits = self.limits.iter().map(|(_, len)| 3 * 4 * len);
        (lists + stores.sum::<usize>()) * keys.elements() + limits.sum::<usize>()
    }
}

/// Everything that the subjects of a comparison share.
struct Stage {
    values: BTreeMap<ListKey, List>,
    outs: BTreeMap<ListKey, List>,
    stores: BTreeMap<StoreKey, Store>,
    limits: BTreeMap<LimitKey, Limits>,
}

impl Stage {
    fn new(keys: &Keys, needs: &Needs) -> Self {
        let list = |&(dtype, offset, copies): &ListKey| {
            ((dtype, offset, copies), List::new(dtype, offset, keys, copies))
        };
        let store = |&(dtype, threads, rule, setting): &StoreKey| {
            let store = Store::open(threads, rule, setting);
            store.init(&List::new(dtype, MALLOC, &keys.sorted(), 1));
            ((dtype, threads, rule, setting), store)
        };
        let limits = |&(threads, len): &LimitKey| ((threads, len), Limits::new(len, threads));
        Self {
            values: needs.values.iter().map(list).collect(),
            outs: needs.outs.iter().map(list).collect(),
            stores: needs.stores.iter().map(store).collect(),
            limits: needs.limits.iter().map(limits).collect(),
        }
    }

    fn subject(&self, case: &Case) -> Subject<'_> {
        let store = &self.stores[&case.store()];
        let (values, outs) = (&self.values[&case.values()], &self.outs[&case.outs()]);
        match case.call {
            Call::Push => timed(|| store.push(values)),
            Call::Pull => timed(|| store.pull(outs)),
            Call::PushThenPull => timed(|| {
                store.push(values);
                store.pull(outs);
            }),
            Call::PushPull => timed(|| store.pushpull(values, outs)),
        }
    }

    /// One subject for each limit and way to move memory, in order.
    fn limit_subjects(&self) -> Vec<Subject<'_>> {
        let ways = |limits| Way::ALL.map(|way| Limits::subject(limits, way));
        self.limits.values().flat_map(ways).collect()
    }
}

/// Measures all cases in turn. Says so and measures nothing if they take more memory than there is,
/// or too much time for a quick run.
pub fn compare(
    report: &mut Report,
    group: &'static str,
    keys: &Keys,
    cases: &[Case],
) -> io::Result<Vec<Measured>> {
    if page::quick() && keys.elements() > QUICK_MOST {
        return report.text(&format!("{group}: {} left out.", keys.name)).map(|()| Vec::new());
    }
    let needs = Needs::of(keys, cases);
    let bytes = 1.1 * needs.bytes(keys) as f64;
    if memory::available_bytes().is_some_and(|free| free < bytes) {
        let text = format!("{group}: {} left out, which takes {:.0} GB.", keys.name, bytes / 1e9);
        return report.text(&text).map(|()| Vec::new());
    }
    let all = measure(group, keys, cases, &needs);
    all.iter().try_for_each(|measured| report.fact(&measured.facts()))?;
    Ok(all)
}

fn measure(group: &'static str, keys: &Keys, cases: &[Case], needs: &Needs) -> Vec<Measured> {
    let stage = Stage::new(keys, needs);
    let mut subjects = stage.limit_subjects();
    let ways = subjects.len();
    subjects.extend(cases.iter().map(|case| stage.subject(case)));
    let times = medians(&subjects, TRIES);
    let limits = needs.limits.iter().zip(times[..ways].chunks(Way::ALL.len()));
    let rates: BTreeMap<_, _> =
        limits.map(|(&key, seconds)| (key, Rates::new(key.1, seconds))).collect();
    let measured = |(case, &seconds): (&Case, &f64)| Measured {
        group,
        keys: keys.name.clone(),
        count: keys.count(),
        elements: keys.elements(),
        case: *case,
        seconds,
        rates: rates[&case.limit(keys)],
    };
    cases.iter().zip(&times[ways..]).map(measured).collect()
}
