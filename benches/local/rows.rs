//! Rows of a table that no cache holds, beside the plain loops that a program would have instead.

use std::cell::RefCell;
use std::ffi::c_void;
use std::io;

use kvstore_protocol::testing::Random;
use serde_json::json;

use crate::api::Tensor;
use crate::compare::Measured;
use crate::memory::{Array, MALLOC};
use crate::report::{Report, number};
use crate::store::{Rule, Setting, Store};
use crate::tensors::{DType, number as element, size_name};
use crate::threads;
use crate::timing::{Subject, TRIES, medians, timed};
use crate::wide::built_wide;

/// Bytes of a table, in every shape.
const TABLE_BYTES: usize = 256 << 20;

/// Rows of a call: a batch.
const BATCH: usize = 1 << 14;

/// Batches that take turns, so that a row is not in a cache when its turn comes again.
const BATCHES: usize = 64;

const COLUMNS: [&str; 4] = ["pull", "push, assign", "push, sgd", "push, adagrad"];

const RULES: [(&str, &str); 2] =
    [("sgd", "learning_rate=0.001"), ("adagrad", "learning_rate=0.001")];

/// A table, a batch of rows, and which rows of the table they are.
struct Batch {
    length: usize,
    table: RefCell<Array<f32>>,
    history: RefCell<Array<f32>>,
    rows: RefCell<Array<f32>>,
    ids: RefCell<Vec<Vec<i64>>>,
}

impl Batch {
    fn new(length: usize) -> Self {
        let count = TABLE_BYTES / 4;
        let array = |len: usize| RefCell::new(Array::new(MALLOC, len, element));
        let mut random = Random::new(1);
        let mut batch = || (0..BATCH).map(|_| random.index(count / length) as i64).collect();
        let ids = RefCell::new((0..BATCHES).map(|_| batch()).collect());
        let history = RefCell::new(Array::new(MALLOC, count, |_| 1.0));
        Self { length, table: array(count), history, rows: array(BATCH * length), ids }
    }

    /// Which rows come next.
    fn next_ids(&self) -> Vec<i64> {
        let mut batches = self.ids.borrow_mut();
        batches.rotate_left(1);
        std::mem::take(&mut batches[0])
    }

    fn give_back(&self, ids: Vec<i64>) {
        self.ids.borrow_mut()[0] = ids;
    }

    fn init(&self, store: &Store) {
        let shape = [(TABLE_BYTES / 4 / self.length) as i64, self.length as i64];
        store.init_one(&tensor(self.table.borrow_mut().get_mut(), &shape, DType::F32.code()));
    }

    /// A call on the store with the batch.
    fn on<'a>(&'a self, store: &'a Store, call: fn(&Store, &Tensor, &Tensor)) -> Subject<'a> {
        timed(move || {
            let mut numbers = self.next_ids();
            let (id_shape, shape) = ([BATCH as i64], [BATCH as i64, self.length as i64]);
            let ids = tensor(&mut numbers, &id_shape, I64);
            let mut rows = self.rows.borrow_mut();
            call(store, &ids, &tensor(rows.get_mut(), &shape, DType::F32.code()));
            self.give_back(numbers);
        })
    }

    /// A plain loop over the batch: (row of the table, its history, row of the batch).
    fn looped(&self, step: fn(&mut [f32], &mut [f32], &mut [f32])) -> Subject<'_> {
        timed(move || {
            let (mut table, mut rows) = (self.table.borrow_mut(), self.rows.borrow_mut());
            let mut history = self.history.borrow_mut();
            let ids = self.next_ids();
            let places = ids.iter().map(|&id| id as usize * self.length);
            for (at, row) in places.zip(rows.get_mut().chunks_mut(self.length)) {
                let place = at..at + self.length;
                step(&mut table.get_mut()[place.clone()], &mut history.get_mut()[place], row);
            }
            self.give_back(ids);
        })
    }
}

/// int64, as the C interface numbers it.
const I64: u32 = 0x0001_4000;

fn tensor<T>(data: &mut [T], shape: &[i64], dtype: u32) -> Tensor {
    Tensor {
        data: data.as_mut_ptr().cast::<c_void>(),
        device: [1, 0],
        ndim: shape.len() as i32,
        dtype,
        // It is read only.
        shape: shape.as_ptr().cast_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    }
}

built_wide! {
    fn adagrad(table: &mut [f32], history: &mut [f32], row: &mut [f32]) {
        for ((value, history), gradient) in table.iter_mut().zip(history).zip(row) {
            *history += *gradient * *gradient;
            *value -= 0.001 * (*gradient / (*history + 1e-7).sqrt());
        }
    }
}

built_wide! {
    fn descend(table: &mut [f32], row: &mut [f32]) {
        for (value, gradient) in table.iter_mut().zip(row) {
            *value -= 0.001 * *gradient;
        }
    }
}

pub fn run(report: &mut Report, group: &'static str) -> io::Result<Vec<Measured>> {
    let mut columns = vec![("table", 14), ("threads", 0)];
    columns.extend(COLUMNS.iter().flat_map(|name| [(*name, 8), ("loop / ours", 0)]));
    let mut lines = Vec::new();
    for length in [16, 64, 256] {
        println!("{group}: rows of {length}");
        let batch = Batch::new(length);
        let name = format!("{} x {length}", size_name(TABLE_BYTES / 4 / length));
        for threads in threads() {
            let stores = stores(&batch, threads);
            let [assign, sgd, adagrad_store] = &stores;
            let push: fn(&Store, &Tensor, &Tensor) = Store::push_rows;
            let subjects = [
                batch.on(assign, Store::pull_rows),
                batch.on(assign, push),
                batch.on(sgd, push),
                batch.on(adagrad_store, push),
                batch.looped(|table, _, row| row.copy_from_slice(table)),
                batch.looped(|table, _, row| table.copy_from_slice(row)),
                batch.looped(|table, _, row| descend(table, row)),
                batch.looped(adagrad),
            ];
            // All batches once, so that no page is new when its turn is timed.
            subjects.iter().for_each(|subject| _ = subject(BATCHES as u32));
            let seconds = medians(&subjects, TRIES);
            let (ours, loops) = seconds.split_at(COLUMNS.len());
            let mut line = vec![name.clone(), threads.to_string()];
            for ((column, ours), looped) in COLUMNS.iter().zip(ours).zip(loops) {
                let ns = ours * 1e9 / BATCH as f64;
                line.extend([number(ns, 1), number(looped / ours, 2)]);
                report.fact(&json!({
                    "group": group, "table": name, "threads": threads, "call": column,
                    "ns_a_row": ns, "loop_over_ours": looped / ours,
                }))?;
            }
            lines.push(line);
        }
    }
    let title =
        format!("{} rows of a table of {} MB: ns a row", size_name(BATCH), TABLE_BYTES >> 20);
    report.table(group, &title, &columns)?;
    lines.iter().try_for_each(|line| report.row(line))?;
    compare_with_dense(report, group)?;
    Ok(Vec::new())
}

/// Stores with the table: without a rule, and with each of the rules.
fn stores(batch: &Batch, threads: usize) -> [Store; 3] {
    let [sgd, adagrad] = RULES.map(|(name, parameters)| {
        let store = Store::open(threads, Rule::Assign, Setting::Usual);
        store.set_optimizer(name, parameters);
        store
    });
    let stores = [Store::open(threads, Rule::Assign, Setting::Usual), sgd, adagrad];
    stores.iter().for_each(|store| batch.init(store));
    stores
}

/// The same push where rows are all that is touched, and where the whole table is.
fn compare_with_dense(report: &mut Report, group: &'static str) -> io::Result<()> {
    const LENGTH: usize = 64;
    const CASES: [(&str, &str, &str); 4] = [
        ("sgd", "learning_rate=0.001", "the pushed rows"),
        ("momentum", "learning_rate=0.001,lazy_update=true", "the pushed rows"),
        ("sgd", "learning_rate=0.001,wd=0.001", "the whole table"),
        ("momentum", "learning_rate=0.001", "the whole table"),
    ];
    println!("{group}: rows alone, and the whole table");
    let batch = Batch::new(LENGTH);
    let stores = CASES.map(|(name, parameters, _)| {
        let store = Store::open(1, Rule::Assign, Setting::Usual);
        store.set_optimizer(name, parameters);
        batch.init(&store);
        store
    });
    let subjects = stores.each_ref().map(|store| batch.on(store, Store::push_rows));
    subjects.iter().for_each(|subject| _ = subject(BATCHES as u32));
    let seconds = medians(&subjects, TRIES);
    let columns = [("rule", 9), ("options", 40), ("touches", 16), ("ms a push", 0)];
    let title = format!("{} rows of {LENGTH} floats, 1 thread: a push", size_name(BATCH));
    report.table("rows-dense", &title, &columns)?;
    for ((name, parameters, touches), seconds) in CASES.into_iter().zip(seconds) {
        let ms = seconds * 1e3;
        report.row(&[name.into(), parameters.into(), touches.into(), number(ms, 2)])?;
        report.fact(&json!({
            "group": group, "rule": name, "options": parameters, "touches": touches, "ms": ms,
        }))?;
    }
    Ok(())
}
