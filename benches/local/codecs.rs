//! Pushes of one value through each codec, beside a copy of the same bytes: encoding, feedback,
//! decoding and assigning, on one thread.

use std::ffi::{CStr, CString};
use std::io;

use serde_json::json;

use crate::compare::Measured;
use crate::memory::{Array, MALLOC};
use crate::report::{Report, number};
use crate::store::{Rule, Setting, Store};
use crate::tensors::{DType, Keys, List, size_name};
use crate::timing::{Subject, TRIES, medians, timed};

/// Within the second-level cache, and beyond every cache.
const SIZES: [usize; 2] = [1 << 14, 1 << 24];

const CODECS: [(&CStr, &CStr); 10] = [
    (c"none", c""),
    (c"1bit", c""),
    (c"2bit", c""),
    (c"fp16", c""),
    (c"bf16", c""),
    (c"int8", c""),
    (c"int8", c"feedback=true"),
    (c"topk", c""),
    (c"topk", c"ratio=0.1"),
    (c"randomk", c""),
];

pub fn run(report: &mut Report, group: &'static str) -> io::Result<Vec<Measured>> {
    let columns = [("floats", 6), ("codec", 8), ("options", 13), ("GB/s", 6), ("to memcpy", 0)];
    report.table(group, "push through a codec, 1 value, 1 thread", &columns)?;
    for len in SIZES {
        measure(report, group, len)?;
    }
    Ok(Vec::new())
}

fn measure(report: &mut Report, group: &'static str, len: usize) -> io::Result<()> {
    let keys = Keys::one(len);
    let value = List::new(DType::F32, MALLOC, &keys, 1);
    let from = Array::new(MALLOC, len, |i| i as f32);
    let to = std::cell::RefCell::new(Array::new(MALLOC, len, |_| 0.0f32));
    let stores = CODECS.map(|(name, params)| {
        let store = Store::open(1, Rule::Assign, Setting::Usual);
        store.init(&value);
        store.set_compression(name, params);
        store
    });
    let mut subjects: Vec<Subject<'_>> =
        vec![timed(|| to.borrow_mut().get_mut().copy_from_slice(from.get()))];
    subjects.extend(stores.iter().map(|store| timed(|| store.push(&value))));
    let times = medians(&subjects, TRIES);
    let names = std::iter::once((c"memcpy", c"")).chain(CODECS);
    for ((name, params), seconds) in names.zip(&times) {
        let (name, params) = (text(name), text(params));
        let (rate, ratio) = ((4 * len) as f64 / seconds / 1e9, times[0] / seconds);
        report.fact(&json!({
            "group": group, "floats": len, "codec": name, "options": params,
            "gb_per_s": rate, "to_memcpy": ratio,
        }))?;
        report.row(&[size_name(len), name, params, number(rate, 2), number(ratio, 3)])?;
    }
    Ok(())
}

fn text(of: &CStr) -> String {
    CString::from(of).into_string().unwrap_or_default()
}
