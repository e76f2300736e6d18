//! The digest log of a local store: a line for each push, whatever path the push takes; bounded; whole.
#![allow(clippy::unwrap_used, reason = "a failed test")]
#![allow(clippy::cast_precision_loss, reason = "small numbers")]

#[path = "common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;

use common::digest;
use common::folder::Folder;
use kvstore::{Config, ErrorKind, Key, Store, Tensor, TensorMut};
use kvstore_checksum::crc64;
use serde_json::Value;

const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// A store that logs to a folder.
fn open(folder: &Path, digests: &str, options: &[(&str, &str)]) -> Store {
    let mut config = Config::new();
    config.set("digests", digests).unwrap();
    config.set("digest_log", folder.to_str().unwrap()).unwrap();
    for (name, value) in options {
        config.set(name, value).unwrap();
    }
    Store::open("local", &config).unwrap()
}

/// Lines of all files, older files first; the first of each file describes it.
fn lines(folder: &Path) -> Vec<Value> {
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort_by_key(|path| !path.to_str().unwrap().ends_with(".old.jsonl"));
    let read = |path| fs::read_to_string(path).unwrap();
    let all: String = files.iter().map(read).collect();
    assert!(all.ends_with('\n'));
    all.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn rounds(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|line| line.get("round").is_some()).collect()
}

fn hex(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap(), 16).unwrap()
}

/// Pushes a list, single keys, or with tickets.
fn push_in_one_way(store: &Store, keys: &[Key], values: &[Vec<f32>], step: usize) {
    let tensors: Vec<Tensor<'_>> = values.iter().map(Tensor::from).collect();
    let pairs = || keys.iter().zip(values);
    match step {
        1 => store.push_list(keys, &tensors).unwrap(),
        2 | 3 => pairs().for_each(|(key, value)| store.push(*key, value).unwrap()),
        _ => {
            let push = |(key, value): (&Key, &Vec<f32>)| store.push_owned(*key, value.clone(), 0);
            let pending: Vec<_> = pairs().map(push).collect();
            pending.into_iter().for_each(|it| drop(it.unwrap().wait(LIMIT).unwrap()));
        }
    }
}

#[test]
fn a_line_has_the_digests_of_the_push_whatever_path_it_takes() {
    let folder = Folder::new("digest_log_paths");
    let store = open(folder.path(), "all", &[("threads", "3")]);
    let name = store.intern("weight").unwrap();
    let sizes: &[usize] = &[1, 7, 3_000, 200_000];
    let keys: Vec<Key> = (0..4u64).map(|at| if at == 1 { name } else { Key::from(at) }).collect();
    let value = |at: usize, step: usize| vec![(at * 10 + step) as f32 * 0.5; sizes[at]];
    for (at, key) in keys.iter().enumerate() {
        store.init(*key, &value(at, 0)).unwrap();
    }
    let pulled = |at: usize| {
        let mut out = vec![0.0f32; sizes[at]];
        store.pull(keys[at], &mut out).unwrap();
        digest::of_elements(&out)
    };
    let mut expected = Vec::new();
    for step in 1..=4 {
        if step == 3 {
            store.set_optimizer("sgd", "learning_rate=0.5,momentum=0.25").unwrap();
        }
        let values: Vec<Vec<f32>> = (0..4).map(|at| value(at, step)).collect();
        push_in_one_way(&store, &keys, &values, step);
        for at in 0..4 {
            expected.push((
                keys[at].id(),
                step as u64,
                pulled(at),
                digest::of_elements(&values[at]),
            ));
        }
    }
    let states = store.digest(&keys).unwrap();
    drop(store);
    let lines = lines(folder.path());
    assert_eq!(lines[0]["kvstore_digests"], 1);
    assert_eq!(lines[0]["digests"], "all");
    assert_eq!(lines.last().unwrap()["end"], true);
    let settings: Vec<_> = lines.iter().filter_map(|line| line["rule"].as_str()).collect();
    assert_eq!(settings.len(), 2);
    assert_eq!(settings[0], "assign");
    assert!(settings[1].starts_with("sgd ") && settings[1].contains("momentum=0.25"));
    let mut found: Vec<_> = rounds(&lines)
        .iter()
        .map(|line| {
            assert_eq!(line["generation"], 0);
            assert_eq!(line["value"][1], line["of"]);
            assert_eq!(line["pushes"].as_array().unwrap().len(), 1);
            let key = line["key"].as_u64().unwrap();
            assert_eq!(line.get("name").is_some(), key == name.id());
            let round = line["round"].as_u64().unwrap();
            (key, round, hex(&line["value"][0]), hex(&line["pushes"][0][1]))
        })
        .collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    for (key, digest) in keys.iter().zip(states) {
        let is_last = |line: &&&Value| line["key"] == key.id() && line["round"] == 4;
        let lines = rounds(&lines);
        let last = lines.iter().find(is_last).unwrap();
        assert_eq!(hex(&last["state"][0][0]), digest.state);
    }
}

/// A digest of all arrays that a line lists, each with its digest and its bytes.
fn joined(arrays: &Value) -> u64 {
    arrays
        .as_array()
        .into_iter()
        .flatten()
        .fold(0, |sum, array| crc64::combine(sum, hex(&array[0]), array[1].as_u64().unwrap()))
}

#[test]
fn a_key_of_many_pieces_has_the_digests_of_its_whole() {
    let rules = ["", "sgd", "adam", "lamb", "groupadagrad", "rmsprop"];
    let mut seen = 0;
    for (threads, count) in [("1", 70_001), ("2", 200_003), ("3", 65_536)] {
        for rule in rules {
            let folder = Folder::new("digest_log_pieces");
            let store = open(folder.path(), "all", &[("threads", threads)]);
            let shape = [1, i64::try_from(count).unwrap()];
            store.init(1u64, Tensor::new(&vec![0.5f32; count], &shape).unwrap()).unwrap();
            if !rule.is_empty() {
                store.set_optimizer(rule, "").unwrap();
            }
            let values: Vec<Vec<f32>> = (1..4)
                .map(|place| (0..count).map(|at| ((at * place) % 101) as f32 * 0.01).collect())
                .collect();
            for step in [1, 3] {
                let values = &values[..step];
                let tensors: Vec<_> =
                    values.iter().map(|value| Tensor::new(value, &shape).unwrap()).collect();
                store.push_list(&vec![1u64.into(); step], &tensors).unwrap();
            }
            let mut out = vec![0.0f32; count];
            store.pull(1u64, TensorMut::new(&mut out, &shape).unwrap()).unwrap();
            let digest = store.digest(&[1u64.into()]).unwrap()[0];
            drop(store);
            let lines = lines(folder.path());
            let rounds = rounds(&lines);
            let place = format!("{rule} {threads}");
            assert_eq!(hex(&rounds[1]["value"][0]), digest::of_elements(&out), "{place}");
            assert_eq!(rounds[1]["value"][1], count * 4, "{place}");
            assert_eq!(joined(&rounds[1]["state"]), digest.state, "{place}");
            for (round, pushed) in [(rounds[0], 1), (rounds[1], 3)] {
                let pushes = round["pushes"].as_array().unwrap();
                assert_eq!(pushes.len(), pushed, "{place}");
                for (push, value) in pushes.iter().zip(&values) {
                    assert_eq!(hex(&push[1]), digest::of_elements(value), "{place}");
                    seen += 1;
                }
            }
        }
    }
    assert_eq!(seen, 3 * rules.len() * 4);
}

#[test]
fn a_value_of_another_dtype_has_the_digest_of_what_is_added() {
    let folder = Folder::new("digest_log_dtypes");
    let store = open(folder.path(), "all", &[]);
    store.init(1u64, Tensor::new(&[0.0f32; 6], &[2, 3]).unwrap()).unwrap();
    let plain = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let plain = Tensor::new(&plain, &[2, 3]).unwrap();
    let wide = [1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0];
    let wide = Tensor::new(&wide, &[2, 3]).unwrap();
    store.push_list(&[1u64.into(), 1u64.into()], &[plain, wide]).unwrap();
    drop(store);
    let lines = lines(folder.path());
    let line = rounds(&lines)[0];
    let expected = digest::of_elements(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!([0, 1].map(|at| hex(&line["pushes"][at][1])), [expected; 2]);
    assert_eq!([0, 1].map(|at| line["pushes"][at][0].as_u64().unwrap()), [0, 1]);
}

#[test]
fn values_alone_have_no_state_and_no_contributions() {
    let folder = Folder::new("digest_log_values");
    let store = open(folder.path(), "values", &[]);
    store.init(1u64, &[1.0f32; 6]).unwrap();
    store.set_optimizer("adam", "").unwrap();
    store.push(1u64, &[1.0f32; 6]).unwrap();
    drop(store);
    let lines = lines(folder.path());
    let line = rounds(&lines)[0];
    assert!(line.get("state").is_none() && line.get("pushes").is_none(), "{line}");
}

#[test]
fn a_key_that_is_made_again_is_another_generation() {
    let folder = Folder::new("digest_log_generations");
    let store = open(folder.path(), "values", &[]);
    for _ in 0..3 {
        store.init(1u64, &[1.0f32; 6]).unwrap();
        store.push(1u64, &[1.0f32; 6]).unwrap();
        store.push(1u64, &[2.0f32; 6]).unwrap();
        store.remove(&[1u64.into()]).unwrap();
    }
    drop(store);
    let lines = lines(folder.path());
    let number = |line: &Value, name: &str| line[name].as_u64().unwrap();
    let found: Vec<_> =
        rounds(&lines).iter().map(|it| (number(it, "generation"), number(it, "round"))).collect();
    assert_eq!(found, [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]);
}

#[test]
fn the_log_stays_within_its_bytes_and_says_what_it_has_dropped() {
    let folder = Folder::new("digest_log_bounded");
    let most = 65_536;
    let store = open(folder.path(), "values", &[("digest_log_bytes", "65536")]);
    store.init(1u64, &[1.0f32; 6]).unwrap();
    for step in 0..5_000 {
        store.push(1u64, &[step as f32; 6]).unwrap();
        if step % 500 == 0 {
            let size: u64 = fs::read_dir(folder.path())
                .unwrap()
                .filter_map(|entry| entry.unwrap().metadata().ok())
                .map(|it| it.len())
                .sum();
            // A write may have begun below the limit.
            assert!(size <= most + (32 << 10), "{size} bytes");
        }
    }
    let stats: Value = serde_json::from_str(&store.stats().unwrap()).unwrap();
    assert_eq!(stats["digest_log"]["lost"], 0);
    drop(store);
    let lines = lines(folder.path());
    let heads: Vec<_> = lines.iter().filter_map(|line| line["dropped"].as_u64()).collect();
    assert_eq!(heads.len(), 2, "two files");
    let found = rounds(&lines);
    assert!(heads[1] > 0 && heads[1] + found.len() as u64 == 5_000, "{heads:?} {}", found.len());
    let numbers: Vec<_> = found.iter().map(|line| line["round"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (heads[1] + 1..=5_000).collect::<Vec<_>>(), "the last ones, in order");
    assert!(lines.iter().any(|line| line["rule"] == "assign"), "what they were merged by");
}

#[test]
fn options_that_cannot_work_together_are_refused() {
    let config = Config::new().with("digest_log", "/tmp").unwrap();
    let error = Store::open("local", &config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Option);
    assert!(error.message().contains("digests=values"), "{error}");
    let config = config.with("digests", "all").unwrap().with("digest_log", "/proc/none").unwrap();
    let error = Store::open("local", &config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.message().contains("/proc/none"), "{error}");
}

#[test]
fn a_closed_store_has_ended_its_log_before_it_is_freed() {
    let folder = Folder::new("closed-log");
    let store = open(folder.path(), "values", &[]);
    store.init(1u64, &[1.0f32; 10]).unwrap();
    for _ in 0..100 {
        store.push(1u64, &[1.0f32; 10]).unwrap();
    }
    store.close(LIMIT).unwrap();
    // A program may end without freeing it.
    std::mem::forget(store);
    let lines = lines(folder.path());
    assert_eq!(rounds(&lines).len(), 100);
    assert_eq!(lines.last().unwrap()["end"], true);
}
