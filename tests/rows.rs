//! Pushes and pulls of rows against scalar loops: every dtype and layout, rows named in any order
//! and repeatedly, several values, with and without an updater, queued and not.
#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "exact bits are compared, and small numbers converted"
)]
#![allow(clippy::unwrap_used, reason = "a failed test")]

mod common;

use std::fs;
use std::time::Duration;

use common::memory::{Memory, array};
use common::random::{self, Random, operations};
use common::scalar::{SUMMED, Scalar, convert_bits, same_bits, sum_bits, tree_bits};
use common::watchdog::bounded;
use kvstore::{Config, DType, ErrorKind, Key, Store, Tensor, TensorMut};
use ndarray::ArrayView;

const PATIENCE: Duration = Duration::from_secs(120);
const SHAPES: &[&[usize]] = &[&[6], &[5, 3], &[9, 2, 2], &[40, 70], &[3, 5000], &[1, 1], &[4, 0]];

fn config(threads: &str, isa: &str) -> Config {
    let mut config = Config::new();
    config.set("threads", threads).unwrap();
    config.set("isa", isa).unwrap();
    config
}

/// Part of a call: a key by its place, the rows, and a tensor of them.
struct Part {
    key: usize,
    dtype: DType,
    ids: Vec<i64>,
    id_memory: Box<dyn Memory>,
    rows: Box<dyn Memory>,
    bits: Vec<u64>,
}

/// A table as the words of the documents have it.
struct Table {
    key: Key,
    dtype: DType,
    shape: Vec<usize>,
    bits: Vec<u64>,
}

struct Player {
    random: Random,
    tables: Vec<Table>,
    adds: bool,
    by_tree: bool,
}

/// The sum of a row's elements, which have positions.
fn sum(dtype: DType, by_tree: bool, pushed: &[(u64, u64)]) -> u64 {
    if by_tree {
        return tree_bits(dtype, pushed);
    }
    sum_bits(dtype, &pushed.iter().map(|it| it.1).collect::<Vec<_>>())
}

impl Player {
    fn bits(&mut self, dtype: DType, count: usize) -> Vec<u64> {
        let random = &mut self.random;
        with_type!(dtype, T => (0..count).map(|_| T::random(random).bits()).collect())
    }

    fn part(&mut self) -> Part {
        let key = self.random.index(self.tables.len());
        let (mut dtype, shape) = (self.tables[key].dtype, self.tables[key].shape.clone());
        if dtype.is_float() && self.random.one_in(4) {
            dtype = self.random.pick(&[DType::F16, DType::BF16, DType::F32, DType::F64]);
        }
        let id_shape = self.random.pick(&[vec![], vec![0], vec![1], vec![7], vec![2, 3], vec![30]]);
        let count: usize = id_shape.iter().product();
        let ids: Vec<i64> = (0..count).map(|_| self.random.index(shape[0]) as i64).collect();
        let row_shape = [&id_shape[..], &shape[1..]].concat();
        let bits = self.bits(dtype, row_shape.iter().product());
        let id_bits: Vec<u64> = ids.iter().map(|&id| id as u64).collect();
        let id_memory = array(DType::I64, &id_shape, &id_bits, &mut self.random);
        let rows = array(dtype, &row_shape, &bits, &mut self.random);
        Part { key, dtype, ids, id_memory, rows, bits }
    }

    /// What the pushed parts of one call make of the tables.
    fn push(&mut self, parts: &[Part]) {
        for (index, table) in self.tables.iter_mut().enumerate() {
            let mine: Vec<&Part> = parts.iter().filter(|part| part.key == index).collect();
            if mine.is_empty() {
                continue;
            }
            let length = table.bits.len() / table.shape[0];
            for at in 0..table.bits.len() {
                let (row, column) = (at / length, at % length);
                // A row that a part has several times is a subtree at the part's position.
                let pushed: Vec<(u64, u64)> = (0u64..)
                    .zip(&mine)
                    .flat_map(|(position, part)| {
                        let named = part.ids.iter().enumerate();
                        let named = named.filter(move |(_, id)| **id == row as i64);
                        let bits = named.map(move |(i, _)| part.bits[i * length + column]);
                        let bits = bits.map(|bits| convert_bits(part.dtype, table.dtype, bits));
                        (position << 32..).zip(bits)
                    })
                    .collect();
                // The dense sum has zeros where nothing is pushed.
                let sum =
                    if pushed.is_empty() { 0 } else { sum(table.dtype, self.by_tree, &pushed) };
                if self.adds {
                    table.bits[at] = sum_bits(table.dtype, &[table.bits[at], sum]);
                } else if !pushed.is_empty() {
                    table.bits[at] = sum;
                }
            }
        }
    }

    fn expected(&self, part: &Part) -> Vec<u64> {
        let table = &self.tables[part.key];
        let length = table.bits.len() / table.shape[0];
        let rows = part.ids.iter().flat_map(|&id| &table.bits[id as usize * length..][..length]);
        rows.map(|&bits| convert_bits(table.dtype, part.dtype, bits)).collect()
    }

    fn check(&self, parts: &[Part]) {
        for part in parts {
            let (expected, found) = (self.expected(part), part.rows.bits());
            assert!(part.rows.is_intact(), "wrote between the elements of an out");
            let same = |(&a, &b): (&u64, &u64)| same_bits(part.dtype, a, b);
            let table = &self.tables[part.key];
            assert!(
                found.len() == expected.len() && found.iter().zip(&expected).all(same),
                "rows {:?} of {:?}{:?} are {found:x?}, not {expected:x?}",
                part.ids,
                table.dtype,
                table.shape,
            );
        }
    }
}

fn keys(player: &Player, parts: &[Part]) -> Vec<Key> {
    parts.iter().map(|part| player.tables[part.key].key).collect()
}

fn run(store: &Store, seed: u64, adds: bool, by_tree: bool) {
    let mut player = Player { random: Random::new(seed), tables: Vec::new(), adds, by_tree };
    for (index, dtype) in SUMMED.iter().cycle().take(36).enumerate() {
        let shape = player.random.pick(SHAPES).to_vec();
        let bits = player.bits(*dtype, shape.iter().product());
        let key = if index % 3 == 0 {
            store.intern(&format!("table{index}")).unwrap()
        } else {
            Key::from(index as u64)
        };
        let memory = array(*dtype, &shape, &bits, &mut player.random);
        store.init(key, memory.tensor()).unwrap();
        player.tables.push(Table { key, dtype: *dtype, shape, bits });
    }
    for _ in 0..operations(150) {
        let count = 1 + player.random.index(6);
        let mut parts: Vec<Part> = (0..count).map(|_| player.part()).collect();
        let keys = keys(&player, &parts);
        let queued = player.random.one_in(3);
        if player.random.one_in(2) {
            let ids: Vec<Tensor<'_>> = parts.iter().map(|part| part.id_memory.tensor()).collect();
            let rows: Vec<Tensor<'_>> = parts.iter().map(|part| part.rows.tensor()).collect();
            if queued {
                store.scope(PATIENCE, |scope| scope.push_rows_list(&keys, &ids, &rows, 0)).unwrap();
            } else {
                store.push_rows_list(&keys, &ids, &rows).unwrap();
            }
            player.push(&parts);
            continue;
        }
        let (mut ids, mut outs) = (Vec::new(), Vec::new());
        for Part { id_memory, rows, .. } in &mut parts {
            ids.push(id_memory.tensor());
            outs.push(rows.tensor_mut());
        }
        if queued {
            store.scope(PATIENCE, |scope| scope.pull_rows_list(&keys, &ids, outs, 0)).unwrap();
        } else {
            store.pull_rows_list(&keys, &ids, &mut outs).unwrap();
        }
        player.check(&parts);
    }
}

#[test]
fn rows_are_summed_replaced_and_pulled_as_a_scalar_loop_does_it() {
    bounded("rows", || {
        let mut random = random::from_environment("rows");
        for (threads, isa) in [("1", "auto"), ("4", "auto"), ("2", "scalar")] {
            let seed = random.next();
            for by_tree in [false, true] {
                let order = if by_tree { "tree" } else { "linear" };
                let config = config(threads, isa).with("sum_order", order).unwrap();
                run(&Store::open("local", &config).unwrap(), seed, false, by_tree);
            }
        }
    });
}

#[test]
fn an_updater_gets_the_dense_sum() {
    bounded("rows", || {
        let mut random = random::from_environment("rows");
        let store = Store::open("device", &config("2", "auto")).unwrap();
        store
            .set_updater(|_, input, stored| {
                with_type!(input.dtype(), T => {
                    let input = input.as_slice::<T>().unwrap();
                    for (stored, &input) in stored.as_mut_slice::<T>().unwrap().iter_mut().zip(input) {
                        *stored = T::add_up([*stored, input].into_iter());
                    }
                });
                Ok(())
            })
            .unwrap();
        run(&store, random.next(), true, false);
    });
}

/// Bits do not depend on threads, also where pieces are split.
#[test]
fn large_tables_give_the_same_bits_for_any_number_of_threads() {
    const ROWS: usize = 20_000;
    const LENGTH: usize = 64;
    let mut random = Random::new(7);
    let table: Vec<f32> = (0..ROWS * LENGTH).map(|_| f32::random(&mut random)).collect();
    let ids: Vec<i64> = (0..30_000).map(|_| random.index(ROWS) as i64).collect();
    let rows: Vec<f32> = (0..ids.len() * LENGTH).map(|_| f32::random(&mut random)).collect();
    let shape = [ROWS as i64, LENGTH as i64];
    let row_shape = [ids.len() as i64, LENGTH as i64];
    let mut expected = table.clone();
    let mut seen = vec![false; ROWS];
    for (i, &id) in ids.iter().enumerate() {
        for column in 0..LENGTH {
            let (to, from) =
                (&mut expected[id as usize * LENGTH + column], rows[i * LENGTH + column]);
            *to = if seen[id as usize] { *to + from } else { from };
        }
        seen[id as usize] = true;
    }
    for threads in ["1", "2", "5"] {
        let store = Store::open("local", &config(threads, "auto")).unwrap();
        store.init(1u64, Tensor::new(&table, &shape).unwrap()).unwrap();
        store.push_rows(1u64, &ids, Tensor::new(&rows, &row_shape).unwrap()).unwrap();
        let mut out = vec![0f32; table.len()];
        store.pull(1u64, TensorMut::new(&mut out, &shape).unwrap()).unwrap();
        assert!(out.iter().zip(&expected).all(|(a, b)| a.is_same(*b)), "{threads} threads");
        let mut pulled = vec![0f32; rows.len()];
        store.pull_rows(1u64, &ids, TensorMut::new(&mut pulled, &row_shape).unwrap()).unwrap();
        for (i, &id) in ids.iter().enumerate() {
            let row = &expected[id as usize * LENGTH..][..LENGTH];
            assert!(pulled[i * LENGTH..][..LENGTH].iter().zip(row).all(|(a, b)| a.is_same(*b)));
        }
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "one call for each reason")]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let store = Store::open("local", &Config::new()).unwrap();
    let table = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    store.init(3u64, Tensor::new(&table, &[3, 2]).unwrap()).unwrap();
    store.init(4u64, Tensor::new(&[0f32; 1], &[]).unwrap()).unwrap();
    store.init(5u64, Tensor::new(&[0f32; 0], &[0, 2]).unwrap()).unwrap();
    let rows = [9f32; 4];
    let two = || Tensor::new(&rows, &[2, 2]).unwrap();
    let refused = |key: u64, ids: Tensor<'_>, rows: Tensor<'_>, kind: ErrorKind, text: &str| {
        let good = [0i64, 1];
        let keys = [Key::from(3u64), Key::from(key)];
        let error =
            store.push_rows_list(&keys, &[(&good).into(), ids], &[two(), rows]).unwrap_err();
        assert_eq!((error.kind(), error.message()), (kind, &*format!("push_rows: {text}")));
        let mut out = [0f32; 6];
        store.pull(3u64, TensorMut::new(&mut out, &[3, 2]).unwrap()).unwrap();
        assert_eq!(out, table);
    };
    let (beyond, negative, short) = ([0i64, 3], [-1i64, 0], [0i32, 1]);
    refused(
        3,
        (&beyond).into(),
        two(),
        ErrorKind::InvalidArgument,
        "key 3: row id 3 is out of range: stored is float32[3,2], with rows 0 to 2",
    );
    refused(
        3,
        (&negative).into(),
        two(),
        ErrorKind::InvalidArgument,
        "key 3: row id -1 is out of range: stored is float32[3,2], with rows 0 to 2",
    );
    refused(
        3,
        (&short).into(),
        two(),
        ErrorKind::DtypeMismatch,
        "key 3: the row ids are int32[2]; they must be int64",
    );
    refused(
        4,
        (&[0i64, 0]).into(),
        two(),
        ErrorKind::ShapeMismatch,
        "key 4: stored is float32[], a scalar, which has no rows",
    );
    refused(
        5,
        (&[0i64, 0]).into(),
        two(),
        ErrorKind::InvalidArgument,
        "key 5: row id 0: stored is float32[0,2], without rows",
    );
    refused(
        3,
        (&[0i64]).into(),
        two(),
        ErrorKind::ShapeMismatch,
        "key 3: value is float32[2,2], stored is float32[3,2]; with the row ids int64[1] it must be \
         float32[1,2]",
    );
    refused(
        3,
        (&[0i64, 1]).into(),
        Tensor::new(&[1i32; 4], &[2, 2]).unwrap(),
        ErrorKind::DtypeMismatch,
        "key 3: value is int32[2,2], stored is float32[3,2]",
    );
    refused(
        6,
        (&[0i64, 1]).into(),
        two(),
        ErrorKind::KeyNotFound,
        "key 6 is not there; initialise it first",
    );
    // No ids are fine, also where there are no rows.
    store.push_rows(5u64, &[0i64; 0], Tensor::new(&[0f32; 0], &[0, 2]).unwrap()).unwrap();
}

/// Elements beyond 2^32 are found.
#[test]
#[cfg(target_os = "linux")]
fn tables_of_more_than_4_billion_elements_have_rows_at_their_end() {
    const LENGTH: usize = 1 << 16;
    const ROWS: usize = (1 << 16) + 40;
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let available = meminfo.lines().find(|line| line.starts_with("MemAvailable:")).unwrap();
    let available: usize = available.split_whitespace().nth(1).unwrap().parse().unwrap();
    if available < 8 << 20 {
        eprintln!("left out: it takes 5 GB of memory, and {available} KB are free");
        return;
    }
    let store = Store::open("local", &Config::new()).unwrap();
    let row = vec![7i8; LENGTH];
    let row = ArrayView::from(&row).into_shape_with_order((1, LENGTH)).unwrap();
    store.init(1u64, &row.broadcast((ROWS, LENGTH)).unwrap()).unwrap();
    let last = i64::try_from(ROWS - 1).unwrap();
    // Where the first would land if a number of 32 bits overflowed.
    let ids = [last, last - (1 << 16), 3];
    let mut rows = vec![0i8; 3 * LENGTH];
    for (number, row) in (1i8..).zip(rows.chunks_mut(LENGTH)) {
        row.fill(number);
    }
    let shape = [3, 1 << 16];
    store.push_rows(1u64, &ids, Tensor::new(&rows, &shape).unwrap()).unwrap();
    let asked = [3, last, last - (1 << 16), last - 1];
    let mut out = vec![0i8; 4 * LENGTH];
    store.pull_rows(1u64, &asked, TensorMut::new(&mut out, &[4, 1 << 16]).unwrap()).unwrap();
    for (row, expected) in out.chunks(LENGTH).zip([3, 1, 2, 7]) {
        assert!(row.iter().all(|&it| it == expected), "{}", row[0]);
    }
}
