//! Pushes of rows under rules, against the figures of MXNet 1.9.1, plain loops, and dense pushes.
//!
//! The figures are those of `tests/golden/row_sparse.json`.

use kvstore::{Key, Store, Tensor, TensorMut};
use serde_json::Value;

use super::common::random::Random;
use super::model::Model;
use super::reference::{Float, ROW, ROWS, SHAPE, compare, pick_options, small};
use super::{RULES, open};

const CASES: usize = 9;

/// Rules that measure whole keys.
const WHOLE: &[&str] = &["lamb", "lars"];

fn floats(list: &Value) -> Vec<f32> {
    list.as_array().unwrap().iter().map(|it| it.as_f64().unwrap() as f32).collect()
}

fn ids(list: &Value) -> Vec<i64> {
    list.as_array().unwrap().iter().map(|it| it.as_i64().unwrap()).collect()
}

/// Gets each pull: what is found, the figures, and the largest magnitude of the table.
type Compare<'a> = dyn FnMut(&[f32], &[f32], f32) + 'a;

/// Plays a case.
fn play(case: &Value, store: &Store, compare: &mut Compare<'_>) {
    let mut shape = Vec::new();
    let mut pulls = 0;
    for op in case["ops"].as_array().unwrap() {
        let key = Key::from(op["key"].as_u64().unwrap());
        match op["op"].as_str().unwrap() {
            "init_row_sparse" => {
                shape = ids(&op["shape"]);
                let value = floats(&op["dense"]);
                store.init(key, Tensor::new(&value, &shape).unwrap()).unwrap();
            }
            "push_row_sparse" => {
                let parts: Vec<(Vec<i64>, Vec<f32>)> = op["values"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|value| (ids(&value["rows"]), floats(&value["data"])))
                    .collect();
                let shapes: Vec<[i64; 2]> =
                    parts.iter().map(|(ids, _)| [ids.len() as i64, shape[1]]).collect();
                let named: Vec<Tensor<'_>> = parts.iter().map(|(ids, _)| ids.into()).collect();
                let rows: Vec<Tensor<'_>> = parts
                    .iter()
                    .zip(&shapes)
                    .map(|((_, rows), shape)| Tensor::new(rows, shape).unwrap())
                    .collect();
                store.push_rows_list(&vec![key; parts.len()], &named, &rows).unwrap();
            }
            "row_sparse_pull" => {
                // MXNet gives each row once, ascending; ours are asked for so.
                let (named, figures) = (ids(&op["expect_indices"]), floats(&op["expect_data"]));
                let mut asked = ids(&op["row_ids"]);
                let mut out = vec![0f32; asked.len() * shape[1] as usize];
                let out_shape = [asked.len() as i64, shape[1]];
                let tensor = TensorMut::new(&mut out, &out_shape).unwrap();
                store.pull_rows(key, &asked, tensor).unwrap();
                let mut rows: Vec<(i64, &[f32])> =
                    asked.iter().copied().zip(out.chunks(shape[1] as usize)).collect();
                rows.sort_by_key(|row| row.0);
                rows.dedup();
                asked.sort_unstable();
                asked.dedup();
                assert_eq!(asked, named);
                let found: Vec<f32> = rows.iter().flat_map(|(_, row)| *row).copied().collect();
                let magnitude = floats(&op["expect_dense"])
                    .into_iter()
                    .fold(0.0, |most: f32, it| most.max(it.abs()));
                compare(&found, &figures, magnitude);
                pulls += 1;
            }
            other => panic!("unknown operation {other:?}"),
        }
    }
    assert!(pulls > 0, "{}", case["name"]);
}

/// MXNet makes rows that are not pushed zero; ours keeps them. So each pull differs from the
/// figures only where the last push had no row.
fn check_assign(case: &Value) {
    let store = open();
    let shape = ids(&case["ops"][0]["shape"]);
    let mut expected = floats(&case["ops"][0]["dense"]);
    let mut tables = Vec::new();
    for op in case["ops"].as_array().unwrap().iter().filter(|op| op["op"] == "push_row_sparse") {
        let mut pushed = std::collections::BTreeMap::<i64, Vec<f32>>::new();
        for value in op["values"].as_array().unwrap() {
            let rows = floats(&value["data"]);
            for (id, row) in ids(&value["rows"]).into_iter().zip(rows.chunks(shape[1] as usize)) {
                match pushed.get_mut(&id) {
                    Some(sum) => sum.iter_mut().zip(row).for_each(|(sum, it)| *sum += it),
                    None => _ = pushed.insert(id, row.to_vec()),
                }
            }
        }
        for (id, row) in &pushed {
            expected[*id as usize * row.len()..][..row.len()].copy_from_slice(row);
        }
        tables.push((expected.clone(), pushed));
    }
    let mut pull = 0;
    play(case, &store, &mut |found, figures, _| {
        let (expected, pushed) = &tables[pull];
        assert_eq!(found, expected);
        for id in pushed.keys() {
            let at = *id as usize * shape[1] as usize;
            assert_eq!(figures[at], expected[at], "MXNet's pushed rows are the same");
        }
        pull += 1;
    });
    assert_eq!(pull, tables.len());
}

#[test]
fn every_case_of_mxnet_matches_as_its_contract_says() {
    let golden: Value = serde_json::from_str(include_str!("../golden/row_sparse.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    for case in cases {
        let contract = case["contract"].as_str().unwrap_or("");
        if contract.starts_with("MXNet zeroes rows") {
            check_assign(case);
            continue;
        }
        let store = open();
        let exact = case["optimizer"].is_null();
        if let Some(rule) = case["optimizer"].as_str() {
            let mut options: Vec<String> = case["params"]
                .as_object()
                .unwrap()
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            if contract.starts_with("recorded with lazy updates") {
                options.push("lazy_update=true".into());
            }
            store.set_optimizer(rule, &options.join(",")).unwrap();
        } else if !case["updater"].is_null() {
            let add = |_, input: &Tensor<'_>, stored: &mut TensorMut<'_>| {
                let input = input.as_slice::<f32>().unwrap();
                let stored = stored.as_mut_slice::<f32>().unwrap();
                stored.iter_mut().zip(input).for_each(|(stored, input)| *stored += input);
                Ok(())
            };
            store.set_updater(add).unwrap();
        }
        play(case, &store, &mut |found, figures, magnitude| {
            let tolerance = if exact { 0.0 } else { 1e-6 * magnitude };
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= tolerance;
            let same = found.len() == figures.len() && found.iter().zip(figures).all(near);
            assert!(same, "{}: {found:?}, not {figures:?}", case["name"]);
        });
    }
    assert_eq!(cases.len(), CASES);
}

/// A push of rows: which, possibly twice, and their gradients.
struct Pushed<T> {
    ids: Vec<i64>,
    rows: Vec<T>,
}

impl<T: Float> Pushed<T> {
    fn random(random: &mut Random) -> Self {
        let ids: Vec<i64> = (0..random.below(4)).map(|_| random.index(ROWS) as i64).collect();
        let rows = (0..ids.len() * ROW).map(|_| T::of(small(random))).collect();
        Self { ids, rows }
    }

    fn push(&self, store: &Store, key: Key) {
        let shape = [self.ids.len() as i64, ROW as i64];
        store.push_rows(key, &self.ids, Tensor::new(&self.rows, &shape).unwrap()).unwrap();
    }

    /// The sum of each row that is pushed, rounded as the store does.
    fn sums(&self) -> Vec<Option<Vec<f64>>> {
        let mut sums = vec![None; ROWS];
        for (&id, row) in self.ids.iter().zip(self.rows.chunks(ROW)) {
            let sum: &mut Option<Vec<f64>> = &mut sums[id as usize];
            let row = row.iter().map(|&it| it.into());
            *sum = Some(match sum.take() {
                None => row.collect(),
                Some(sum) => sum.into_iter().zip(row).map(|(a, b)| T::of(a + b).into()).collect(),
            });
        }
        sums
    }
}

fn prepare<T: Float>(rule: &'static str, random: &mut Random, lazy: bool) -> (Store, Model, Key) {
    let (store, key) = (open(), Key::from(1u64));
    let first: Vec<T> = (0..ROWS * ROW).map(|_| T::of(small(random))).collect();
    let mut model = Model::new(rule, first.iter().map(|it| (*it).into()).collect(), ROW);
    model.options = pick_options(rule, random);
    let mut options: Vec<String> =
        model.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
    options.push(format!("lazy_update={lazy}"));
    store.init(key, Tensor::new(&first, SHAPE).unwrap()).unwrap();
    store.set_optimizer(rule, &options.join(",")).unwrap();
    (store, model, key)
}

fn check_against_loops<T: Float>(rule: &'static str, random: &mut Random, lazy: bool) {
    let (store, mut model, key) = prepare::<T>(rule, random, lazy);
    for number in 1..=60 {
        let pushed = Pushed::<T>::random(random);
        pushed.push(&store, key);
        if lazy {
            model.push_rows(&pushed.sums());
        } else {
            let zero = || vec![0.0; ROW];
            let dense = pushed.sums().into_iter().flat_map(|row| row.unwrap_or_else(zero));
            model.push(&dense.collect::<Vec<f64>>());
        }
        let case = format!("{rule} of {}, lazy {lazy}, push {number}", T::DTYPE.name());
        compare::<T>(&store, key, &model, &case);
    }
}

#[test]
fn every_rule_does_to_rows_what_a_plain_loop_does() {
    let mut random = Random::new(9);
    for &rule in RULES {
        for _ in 0..6 {
            check_against_loops::<f64>(rule, &mut random, false);
            check_against_loops::<f32>(rule, &mut random, false);
            if !WHOLE.contains(&rule) {
                check_against_loops::<f64>(rule, &mut random, true);
                check_against_loops::<f32>(rule, &mut random, true);
            }
        }
    }
}

/// Dense pushes and pushes of rows, mixed: without `lazy_update` a push of rows is a push of the
/// dense sum, bit for bit, also where the library looks at the pushed rows only.
#[test]
fn a_push_of_rows_is_a_push_of_the_dense_sum() {
    let mut random = Random::new(10);
    for &rule in RULES {
        for options in ["", "wd=0.01", "multi_precision=true", "wd=0.01,clip_gradient=0.5"] {
            let mut tables = Vec::new();
            let first: Vec<f32> = (0..ROWS * ROW).map(|_| small(&mut random) as f32).collect();
            for _ in 0..2 {
                let store = open();
                store.init(1u64, Tensor::new(&first, SHAPE).unwrap()).unwrap();
                store.set_optimizer(rule, options).unwrap();
                tables.push(store);
            }
            for number in 1..=30 {
                let pushed = Pushed::<f32>::random(&mut random);
                let mut dense = vec![0f32; ROWS * ROW];
                for (id, row) in pushed.sums().into_iter().enumerate() {
                    for (column, number) in row.into_iter().flatten().enumerate() {
                        dense[id * ROW + column] = number as f32;
                    }
                }
                if number % 5 == 0 {
                    tables[0].push(1u64, Tensor::new(&dense, SHAPE).unwrap()).unwrap();
                } else {
                    pushed.push(&tables[0], Key::from(1u64));
                }
                tables[1].push(1u64, Tensor::new(&dense, SHAPE).unwrap()).unwrap();
                let bits = |store: &Store| {
                    let mut out = vec![0f32; ROWS * ROW];
                    store.pull(1u64, TensorMut::new(&mut out, SHAPE).unwrap()).unwrap();
                    out.iter().map(|it| it.to_bits()).collect::<Vec<u32>>()
                };
                assert_eq!(bits(&tables[0]), bits(&tables[1]), "{rule} {options}, push {number}");
            }
        }
    }
}

#[test]
fn rules_that_measure_whole_keys_refuse_to_be_lazy() {
    for rule in WHOLE {
        let store = open();
        let error = store.set_optimizer(rule, "lazy_update=true").unwrap_err();
        assert_eq!(
            error.message(),
            format!(
                "set_optimizer: optimizer {rule}: lazy_update: it measures whole keys, so all rows change"
            )
        );
        store.set_optimizer(rule, "lazy_update=false").unwrap();
        assert!(store.set_hyperparameter("lazy_update", 1.0).is_err());
    }
}
