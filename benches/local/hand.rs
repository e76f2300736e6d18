//! One `pushpull` beside loops written by hand over the same arrays, with the same order of
//! operations: what a program gains or loses by calling the library.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::io;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use serde_json::json;

use crate::compare::{Call, Case, Measured};
use crate::crew::Crew;
use crate::limits::{Limits, Rates, Way};
use crate::loops::{Loop, Step, Variant};
use crate::memory::{self, MALLOC};
use crate::page;
use crate::report::{Report, number};
use crate::store::{Rule, Setting, Store};
use crate::tensors::{DType, Keys, List, number as element, size_name};
use crate::threads;
use crate::timing::{Subject, TRIES, medians, timed};

const SIZES: [usize; 4] = [1 << 10, 1 << 12, 1 << 16, 1 << 20];
const MIDDLE_SIZES: [usize; 4] = [1 << 15, 1 << 17, 1 << 18, 1 << 19];
const LARGE_SIZES: [usize; 2] = [1 << 24, 1 << 26];
const READ_SIZES: [usize; 3] = [1 << 12, 1 << 16, 1 << 20];
const COPIES: [usize; 2] = [1, 4];
const RULES: [Rule; 3] = [Rule::Assign, Rule::Momentum, Rule::Adam];

/// The longest arrays whose results are compared before they are measured.
const CHECKED: usize = 1 << 16;

pub fn small(report: &mut Report, group: &'static str) -> io::Result<Vec<Measured>> {
    run(report, group, &SIZES, false)
}

pub fn middle(report: &mut Report, group: &'static str) -> io::Result<Vec<Measured>> {
    run(report, group, &MIDDLE_SIZES, false)
}

pub fn large(report: &mut Report, group: &'static str) -> io::Result<Vec<Measured>> {
    run(report, group, &LARGE_SIZES, false)
}

/// Each call and each loop is followed by a reader of the outs, which finds them in the caches
/// unless stores went past them.
pub fn read(report: &mut Report, group: &'static str) -> io::Result<Vec<Measured>> {
    run(report, group, &READ_SIZES, true)
}

fn run(
    report: &mut Report,
    group: &'static str,
    sizes: &[usize],
    reads: bool,
) -> io::Result<Vec<Measured>> {
    let columns = [
        ("floats", 6),
        ("values", 0),
        ("outs", 0),
        ("rule", 8),
        ("threads", 0),
        ("limit, GB/s", 0),
        ("ours / limit", 0),
        ("loop / limit", 0),
        ("time, ours / loop", 0),
        ("best loop", 18),
    ];
    let title = if reads {
        "pushpull and a reader of the outs beside loops written by hand"
    } else {
        "pushpull beside loops written by hand"
    };
    report.table(group, title, &columns)?;
    for &len in sizes {
        // Stores of all rules, lists, limits, and the loops' own arrays.
        let bytes = 1.1 * 4.0 * len as f64 * f64::from(2 * 6 + 2 * 4 + 2 * 3 + 3);
        let quick = page::quick() && len > 1 << 20;
        if quick || memory::available_bytes().is_some_and(|free| free < bytes) {
            report.text(&format!("{group}: {} left out.", size_name(len)))?;
            continue;
        }
        // Between processors, reading what another one wrote would be all that is measured.
        for threads in threads().into_iter().filter(|threads| !reads || *threads == 1) {
            measure(report, (group, reads), len, threads)?;
        }
    }
    Ok(Vec::new())
}

/// All cases of one size and number of threads.
fn measure(
    report: &mut Report,
    (group, reads): (&str, bool),
    len: usize,
    threads: usize,
) -> io::Result<()> {
    let keys = Keys::one(len);
    let list = |copies| List::new(DType::F32, MALLOC, &keys, copies);
    let [values, outs] = [COPIES.map(list), COPIES.map(list)];
    let limits = Limits::new(len, threads);
    for rule in RULES {
        let store = Store::open(threads, rule, Setting::Usual);
        store.init(&list(1));
        let looped = LoopStore::new(len, threads, rule);
        for (values, outs) in values.iter().flat_map(|it| outs.iter().map(move |out| (it, out))) {
            let (n, m) = (values.keys().len(), outs.keys().len());
            if len <= CHECKED {
                check(&keys, rule, values, outs);
            }
            let mut subjects: Vec<Subject<'_>> = Way::ALL.map(|way| limits.subject(way)).into();
            subjects.push(timed(|| {
                store.pushpull(values, outs);
                if reads {
                    read_all(outs, len);
                }
            }));
            let variants = 0..Variant::ALL.len();
            subjects.extend(variants.map(|variant| looped.subject(variant, values, outs, reads)));
            let times = medians(&subjects, TRIES);
            let (best, seconds) = best(&times[Way::ALL.len() + 1..]);
            let case =
                Case { threads, values: n, rule, call: Call::PushPull, outs: m, ..Case::BASE };
            let limit = Rates::new(len, &times).best();
            let bytes = (case.arrays() * len * 4) as f64;
            let ours = times[Way::ALL.len()];
            report.fact(&json!({
                "group": group, "elements": len, "threads": threads, "values": n, "outs": m,
                "rule": rule.name(), "seconds": ours, "loops_s": &times[Way::ALL.len() + 1..],
                "bytes": bytes, "limit_bytes_per_s": limit,
            }))?;
            let mut row = vec![size_name(len), n.to_string(), m.to_string()];
            row.extend([rule.name().to_owned(), threads.to_string(), number(limit / 1e9, 1)]);
            row.extend([ours, seconds].map(|seconds| number(bytes / seconds / limit, 2)));
            row.extend([number(ours / seconds, 2), best.name()]);
            report.row(&row)?;
        }
    }
    Ok(())
}

fn best(times: &[f64]) -> (Variant, f64) {
    let pairs = Variant::ALL.into_iter().zip(times.iter().copied());
    pairs.min_by(|a, b| a.1.total_cmp(&b.1)).expect("there are loops")
}

/// The fewest floats for which a loop uses several threads: handing less over takes longer.
const SHARED: usize = 1 << 14;

/// What a program keeps that has loops in place of a store: the value and its state.
struct LoopStore {
    len: usize,
    piece: usize,
    rule: Rule,
    arrays: RefCell<[memory::Array<f32>; 3]>,
    rounds: Cell<i32>,
    /// The loop of the order that the helpers carry out.
    shared: Arc<AtomicPtr<Loop<'static>>>,
    crew: RefCell<Crew>,
}

impl LoopStore {
    fn new(len: usize, threads: usize, rule: Rule) -> Self {
        let stored = memory::Array::new(MALLOC, len, element);
        let state = || memory::Array::new(MALLOC, len, |_| 0.0);
        let threads = if len < SHARED { 1 } else { threads };
        let piece = (len / threads).next_multiple_of(16);
        let shared = Arc::new(AtomicPtr::new(null_mut::<Loop<'static>>()));
        let helpers = (1..threads).map(|index| {
            let (shared, range) =
                (Arc::clone(&shared), piece * index..len.min(piece * (index + 1)));
            move |order: u32| {
                // SAFETY: it lives until the helpers have carried out the order.
                let work = unsafe { &*shared.load(Ordering::Acquire) };
                work.run(Variant::ALL[order as usize], range.clone());
            }
        });
        let crew = RefCell::new(Crew::new(helpers));
        let arrays = RefCell::new([stored, state(), state()]);
        Self { len, piece, rule, arrays, rounds: Cell::new(0), shared, crew }
    }

    fn subject<'a>(
        &'a self,
        variant: usize,
        values: &'a List,
        outs: &'a List,
        reads: bool,
    ) -> Subject<'a> {
        let list = outs;
        let addresses = |list: &List| -> Vec<*mut f32> {
            list.tensors().iter().map(|tensor| tensor.data.cast()).collect()
        };
        let values: Vec<_> = addresses(values).iter().map(|it| it.cast_const()).collect();
        let outs = addresses(outs);
        timed(move || {
            let mut arrays = self.arrays.borrow_mut();
            let [stored, first, second] = arrays.each_mut().map(|it| it.get_mut().as_mut_ptr());
            let (values, outs, states) = (&values[..], &outs[..], [first, second]);
            let mut work = Loop { values, outs, stored, states, step: self.step() };
            self.shared.store((&raw mut work).cast(), Ordering::Release);
            let mine: Range<usize> = 0..self.piece.min(self.len);
            let mine = |order: u32| work.run(Variant::ALL[order as usize], mine.clone());
            self.crew.borrow_mut().run(variant as u32, mine);
            if reads {
                read_all(list, self.len);
            }
        })
    }

    /// The step of the next round, with the numbers of the store's optimizer.
    fn step(&self) -> Step {
        self.rounds.set(self.rounds.get() + 1);
        let bias = |beta: f64| 1.0 - beta.powi(self.rounds.get());
        match self.rule {
            Rule::Momentum => Step::Momentum(0.001),
            Rule::Adam => Step::Adam((0.001 * bias(0.999).sqrt() / bias(0.9)) as f32),
            _ => Step::Assign,
        }
    }
}

/// Reads arrays of so many floats, as a program does that has pulled weights.
fn read_all(outs: &List, len: usize) {
    for out in outs.tensors() {
        // SAFETY: an array of that many floats, which no other thread uses between calls.
        let floats = unsafe { std::slice::from_raw_parts(out.data.cast::<f32>(), len) };
        let mut sums = [0.0; 32];
        for some in floats.as_chunks::<32>().0 {
            sums.iter_mut().zip(some).for_each(|(sum, float)| *sum += float);
        }
        black_box(sums);
    }
}

/// A round of a fresh store and of each loop must give the same outs.
fn check(keys: &Keys, rule: Rule, values: &List, outs: &List) {
    let store = Store::open(1, rule, Setting::Usual);
    store.init(&List::new(DType::F32, MALLOC, keys, 1));
    store.pushpull(values, outs);
    let ours = outs.last_numbers(keys.elements());
    for variant in 0..Variant::ALL.len() {
        LoopStore::new(keys.elements(), 1, rule).subject(variant, values, outs, false)(1);
        assert_eq!(outs.last_numbers(keys.elements()), ours, "a loop has other results");
    }
}
