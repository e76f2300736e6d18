//! Random lives of a store, one of them saved and loaded all the time, the other never.

use kvstore::{ErrorKind, Key, Store};

use super::common::folder::Folder;
use super::common::random::{self, Random, operations};
use super::common::watchdog::bounded;
use super::{RULES, open_with, snapshot};

const CODECS: &[&str] = &["none", "1bit", "2bit", "bf16", "topk", "randomk"];
const NAMES: &[&str] = &["w", "b", "#7", ""];

/// One call that both stores get; errors must be the same.
fn step(random: &mut Random, stores: [&Store; 2]) {
    let seed = random.next();
    let [one, other] = stores.map(|store| call(&mut Random::new(seed), store));
    assert_eq!(one, other, "{seed}");
}

fn call(random: &mut Random, store: &Store) -> Option<ErrorKind> {
    let named = store.intern(random.pick(NAMES)).unwrap();
    let key = if random.one_in(2) { named } else { Key::from(random.next() % 4) };
    let values: Vec<f32> =
        (0..key.id() % 5).map(|_| (random.next() % 64) as f32 / 16.0 - 2.0).collect();
    let number = random.pick(&[0.0, 0.1, 1.0 / 3.0, 0.5]);
    let ids: Vec<i64> = values.iter().map(|_| random.next() as i64 % 5).collect();
    let result = match random.below(18) {
        0 => {
            store.set_optimizer(random.pick(RULES), random.pick(&["", "wd=0.1", "clip_gradient=1"]))
        }
        1 => store.set_hyperparameter(random.pick(&["learning_rate", "momentum", "beta1"]), number),
        2 => store.set_key_hyperparameter(key, random.pick(&["lr_mult", "wd_mult"]), number),
        3 => store.remove(&[key]),
        4..7 => store.init(key, &values),
        7 if random.one_in(4) => store.clear_updater(),
        8 => store.set_compression(random.pick(CODECS), ""),
        9 => store.push_rows(key, &ids, &values),
        _ => store.push(key, &values),
    };
    result.err().map(|error| error.kind())
}

#[test]
fn saving_and_loading_at_any_point_changes_nothing() {
    bounded("property of checkpoints", || {
        let folder = Folder::new("property");
        let (one, other) = (folder.file("one"), folder.file("other"));
        let mut random = random::from_environment("property of checkpoints");
        for _ in 0..operations(200).min(4000) {
            let straight = open_with("1", "auto");
            let mut resumed = open_with("2", "auto");
            for _ in 0..random.below(60) {
                step(&mut random, [&straight, &resumed]);
                match random.below(8) {
                    0 => {
                        resumed.save(&other).unwrap();
                        resumed = open_with("3", "auto");
                        resumed.load(&other).unwrap();
                    }
                    1 => {
                        resumed.save(&other).unwrap();
                        resumed.load(&other).unwrap();
                    }
                    _ => {}
                }
            }
            assert!(snapshot(&straight, &one) == snapshot(&resumed, &other));
        }
    });
}
