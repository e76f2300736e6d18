//! Every call on a list, with a list and with one ten times as long: counts the steps of its
//! searches.
//!
//! A call whose searches cost the square of the list takes a hundred times as many.
#![allow(clippy::unwrap_used, reason = "a failed test")]

use crate::config::Config;
use crate::key::Key;
use crate::search;
use crate::store::Store;
use crate::tensor::{Tensor, TensorMut};

pub(crate) const SHORT: usize = 4_000;
pub(crate) const LONG: usize = 40_000;
/// How many times as many steps the long list may take.
pub(crate) const MOST: u64 = 12;

pub(crate) type Work = fn(&Case);

/// Every call on a list, and whether its keys are there before.
pub(crate) const CALLS: [(&str, Work, bool); 9] = [
    ("init", init, false),
    ("broadcast", broadcast, false),
    ("push", push, true),
    ("pull", pull, true),
    ("pushpull", pushpull, true),
    ("tickets", tickets, true),
    ("push_rows", push_rows, true),
    ("pull_rows", pull_rows, true),
    ("remove", remove, true),
];

/// A list of keys in non-processing order, and a store that has them, or not.
pub(crate) struct Case {
    pub(crate) store: Store,
    keys: Vec<Key>,
}

impl Case {
    fn new(count: usize, with_names: bool, there: bool) -> Self {
        let store = Store::open("local", &Config::new()).unwrap();
        let case = Self::of(store, count, with_names);
        if there {
            init(&case);
        }
        case
    }

    pub(crate) fn of(store: Store, count: usize, with_names: bool) -> Self {
        // 7919 is a prime that divides neither count.
        let keys = (0..count).map(|index| {
            let id = index * 7919 % count;
            if with_names { store.intern(&id.to_string()).unwrap() } else { Key::from(id as u64) }
        });
        let keys = keys.collect();
        Self { store, keys }
    }

    fn with_values(&self, work: impl FnOnce(&Store, &[Key], &[Tensor<'_>])) {
        let numbers = vec![[1.0f32]; self.keys.len()];
        let values: Vec<Tensor<'_>> = numbers.iter().map(Tensor::from).collect();
        work(&self.store, &self.keys, &values);
    }

    fn with_outs(&self, work: impl FnOnce(&Store, &[Key], &mut [TensorMut<'_>])) {
        let mut numbers = vec![[0.0f32]; self.keys.len()];
        let mut outs: Vec<TensorMut<'_>> = numbers.iter_mut().map(TensorMut::from).collect();
        work(&self.store, &self.keys, &mut outs);
        drop(outs);
        assert!(numbers.iter().all(|number| number[0] > 0.0), "all outs are filled");
    }

    /// With the ids and the tensors of rows: row 0 of each key.
    fn with_rows(&self, work: impl FnOnce(&Store, &[Key], &[Tensor<'_>], &mut Vec<[f32; 1]>)) {
        let ids = vec![[0i64]; self.keys.len()];
        let ids: Vec<Tensor<'_>> = ids.iter().map(Tensor::from).collect();
        let mut rows = vec![[2.0f32]; self.keys.len()];
        work(&self.store, &self.keys, &ids, &mut rows);
    }
}

fn init(case: &Case) {
    case.with_values(|store, keys, values| store.init_list(keys, values).unwrap());
}

fn broadcast(case: &Case) {
    case.with_outs(|_, keys, outs| {
        case.with_values(|store, _, values| {
            store.broadcast_list(keys, values, keys, outs).unwrap();
        });
    });
}

fn push(case: &Case) {
    case.with_values(|store, keys, values| store.push_list(keys, values).unwrap());
}

fn pull(case: &Case) {
    case.with_outs(|store, keys, outs| store.pull_list(keys, outs).unwrap());
}

fn pushpull(case: &Case) {
    case.with_outs(|_, keys, outs| {
        case.with_values(|store, _, values| {
            store.pushpull_list(keys, values, keys, outs).unwrap();
        });
    });
}

/// Every call with a ticket, behind and before others on its keys.
fn tickets(case: &Case) {
    case.with_values(|store, keys, values| {
        store
            .scope(std::time::Duration::from_secs(60), |scope| {
                for _ in 0..3 {
                    scope.push_list(keys, values, 0)?;
                }
                store.push_list(keys, values)
            })
            .unwrap();
    });
}

fn push_rows(case: &Case) {
    case.with_rows(|store, keys, ids, rows| {
        let rows: Vec<Tensor<'_>> = rows.iter().map(Tensor::from).collect();
        store.push_rows_list(keys, ids, &rows).unwrap();
    });
}

fn pull_rows(case: &Case) {
    case.with_rows(|store, keys, ids, rows| {
        let mut rows: Vec<TensorMut<'_>> = rows.iter_mut().map(TensorMut::from).collect();
        store.pull_rows_list(keys, ids, &mut rows).unwrap();
    });
}

pub(crate) fn remove(case: &Case) {
    case.store.remove(&case.keys).unwrap();
    assert!(case.store.keys().unwrap().is_empty());
}

fn steps(work: Work, count: usize, with_names: bool, there: bool) -> u64 {
    let case = Case::new(count, with_names, there);
    search::steps_of(|| work(&case)).0
}

#[test]
fn no_call_on_a_list_costs_the_square_of_it() {
    for (name, work, there) in CALLS {
        for with_names in [false, true] {
            let costs_the_square = |_| {
                let [short, long] =
                    [SHORT, LONG].map(|count| steps(work, count, with_names, there));
                assert!(short >= SHORT as u64, "{name}: only {short} steps are counted");
                eprintln!("{name}, names {with_names}: {short} and {long} steps");
                long > MOST * short
            };
            // Operations that have ended before the next one begins spare it some.
            assert!(!(0..5).all(costs_the_square), "{name}, names {with_names}");
        }
    }
}
