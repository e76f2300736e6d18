//! What a key of a bound list costs beyond its bytes, beside the same list call and beside a loop of
//! the same copies and sums without keys, locks and checks.

use std::io;

use crate::compare::Measured;
use crate::memory;
use crate::report::{Report, number};
use crate::store::{Rule, Setting, Store};
use crate::tensors::{DType, Keys, List};
use crate::timing::{TRIES, medians, timed};

const KEYS: usize = 1000;
const FLOATS: usize = 64;

#[derive(Clone, Copy)]
enum Call {
    Push,
    Pull,
    PushPull,
}

const CALLS: [(Call, &str); 3] =
    [(Call::Push, "push"), (Call::Pull, "pull"), (Call::PushPull, "pushpull")];

pub fn run(report: &mut Report, group: &'static str) -> io::Result<Vec<Measured>> {
    let columns = [
        ("call", 9),
        ("values", 0),
        ("list call, ns a key", 0),
        ("bound", 6),
        ("loop", 6),
        ("list call - loop", 0),
        ("bound - loop", 0),
    ];
    let title = format!("Bound lists of {KEYS} keys of {FLOATS} floats, one thread: ns a key");
    report.table(group, &title, &columns)?;
    for values in [1, 4] {
        for (call, name) in CALLS {
            if values > 1 && matches!(call, Call::Pull) {
                continue;
            }
            let [list, bound, plain] = measure(call, values);
            let ns = |seconds: f64| number(seconds * 1e9 / KEYS as f64, 1);
            let mut row = vec![name.to_owned(), values.to_string()];
            row.extend([list, bound, plain, list - plain, bound - plain].map(ns));
            report.row(&row)?;
        }
    }
    Ok(Vec::new())
}

/// Seconds of the list call, of the bound list and of the loop.
fn measure(call: Call, values: usize) -> [f64; 3] {
    let keys = Keys::many(KEYS, FLOATS);
    let list = |copies| List::new(DType::F32, memory::MALLOC, &keys, copies);
    let (ins, outs, first) = (list(values), list(values), list(1));
    let (store, other) = (open(&first), open(&first));
    let bound = other.bind(&ins, &outs);
    let (own, plain_outs) = (list(1), list(values));
    let plain = || match call {
        Call::Push => plain_loop(&own, values, Some(&ins), None),
        Call::Pull => plain_loop(&own, values, None, Some(&plain_outs)),
        Call::PushPull => plain_loop(&own, values, Some(&ins), Some(&plain_outs)),
    };
    let subjects = match call {
        Call::Push => [timed(|| store.push(&ins)), timed(|| bound.push()), timed(plain)],
        Call::Pull => [timed(|| store.pull(&outs)), timed(|| bound.pull()), timed(plain)],
        Call::PushPull => {
            [timed(|| store.pushpull(&ins, &outs)), timed(|| bound.pushpull()), timed(plain)]
        }
    };
    let times = medians(&subjects, TRIES);
    [times[0], times[1], times[2]]
}

fn open(first: &List) -> Store {
    let store = Store::open(1, Rule::Assign, Setting::Usual);
    store.init(first);
    store
}

/// The copies and sums of a call: the sum of each key's values to its stored array, and that to each
/// of its outs.
fn plain_loop(stored: &List, copies: usize, values: Option<&List>, outs: Option<&List>) {
    for (key, own) in stored.tensors().iter().enumerate() {
        let own = own.data.cast::<f32>();
        let of_key = key * copies..(key + 1) * copies;
        // SAFETY: every array has FLOATS elements, and lists are apart.
        unsafe {
            match values.map(|list| &list.tensors()[of_key.clone()]) {
                Some([only]) => only.data.cast::<f32>().copy_to_nonoverlapping(own, FLOATS),
                Some([a, b, c, d]) => {
                    let [a, b, c, d] = [a, b, c, d].map(|it| it.data.cast::<f32>());
                    for at in 0..FLOATS {
                        *own.add(at) = *a.add(at) + *b.add(at) + *c.add(at) + *d.add(at);
                    }
                }
                _ => {}
            }
            for out in outs.iter().flat_map(|list| &list.tensors()[of_key.clone()]) {
                own.copy_to_nonoverlapping(out.data.cast(), FLOATS);
            }
        }
    }
}
