//! What a load replaces, adds, leaves alone and refuses; and how both calls stand among others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kvstore::{Config, DType, ErrorKind, Key, Store, Tensor, TensorMut, f16};

use super::common::folder::Folder;
use super::common::gate::Gate;
use super::common::updater::add;
use super::common::watchdog::bounded;
use super::{loaded, open, pull, refused, snapshot};

const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn keys_of_every_name_dtype_and_shape_come_back() {
    let folder = Folder::new("names");
    let names = [
        "w",
        "",
        "#",
        "#7",
        "##7",
        "#checksum",
        "#state.0:w",
        "__metadata__",
        "gr\u{f6}\u{df}e \"\n",
    ];
    let store = open();
    for (number, name) in names.iter().enumerate() {
        store.init(store.intern(name).unwrap(), &[number as f32]).unwrap();
    }
    for id in [7, 0, (1 << 63) - 1] {
        store.init(id, &[id].map(|it: u64| it as i64)).unwrap();
    }
    store.init(1u64, Tensor::new(&[1i8, -2, 3], &[3, 1]).unwrap()).unwrap();
    store.init(2u64, Tensor::new(&[5u8], &[]).unwrap()).unwrap();
    store.init(3u64, Tensor::new::<i32>(&[], &[2, 0, 3]).unwrap()).unwrap();
    store.init(4u64, &[f16::from_f32(0.5); 5]).unwrap();
    let path = folder.file("file");
    let first = snapshot(&store, &path);
    let other = loaded(&path);
    assert_eq!(other.keys().unwrap(), store.keys().unwrap());
    for key in store.keys().unwrap() {
        assert_eq!(other.key_info(key).unwrap(), store.key_info(key).unwrap());
        assert_eq!(other.key_name(key).ok(), store.key_name(key).ok());
    }
    assert!(snapshot(&other, &path) == first);
    for (number, name) in names.iter().enumerate() {
        assert_eq!(pull(&other, Key::of_name(name), 1), [number as f32], "{name:?}");
    }
    // Into the same store: nothing changes, the order of names neither.
    store.load(&path).unwrap();
    assert!(snapshot(&store, &path) == first);
}

#[test]
fn an_empty_store_has_a_file_too() {
    let folder = Folder::new("empty");
    let path = folder.file("file");
    open().save(&path).unwrap();
    let store = open();
    store.init(1u64, &[1.0f32]).unwrap();
    store.load(&path).unwrap();
    assert_eq!(pull(&store, 1u64, 1), [1.0]);
}

#[test]
fn keys_are_replaced_added_or_left_alone() {
    let folder = Folder::new("replaced");
    let path = folder.file("file");
    let store = open();
    let [a, b, c] = ["a", "b", "c"].map(|name| store.intern(name).unwrap());
    store
        .init_list(
            &[b, a, 1u64.into()],
            &[(&[1.0f32]).into(), (&[2.0f32]).into(), (&[3.0f32]).into()],
        )
        .unwrap();
    store.save(&path).unwrap();
    let other = open();
    other.intern("c").unwrap();
    other.init_list(&[c, 5u64.into()], &[(&[7.0f32]).into(), (&[8.0f32]).into()]).unwrap();
    other.intern("a").unwrap();
    other.init(a, &[9.0f32]).unwrap();
    other.load(&path).unwrap();
    assert_eq!(other.keys().unwrap(), [1u64.into(), 5u64.into(), c, a, b]);
    let values = other.keys().unwrap().into_iter().map(|key| pull(&other, key, 1)[0]);
    assert_eq!(values.collect::<Vec<_>>(), [3.0, 8.0, 7.0, 2.0, 1.0]);
    assert_eq!(other.key_name(b).unwrap(), "b");
}

/// Puts a key into a store.
type Init = fn(&Store);

#[test]
fn a_key_that_is_another_one_refuses_the_whole_file() {
    let folder = Folder::new("another");
    let (path, mine) = (folder.file("file"), folder.file("mine"));
    let store = open();
    let name = store.intern("only here").unwrap();
    store
        .init_list(
            &[name, 1u64.into(), 2u64.into()],
            &[(&[1.0f32]).into(), (&[2.0f32; 3]).into(), (&[3.0f32]).into()],
        )
        .unwrap();
    store.set_optimizer("adam", "").unwrap();
    store.save(&path).unwrap();
    let others: [(Init, ErrorKind, &str); 3] = [
        (
            |it| it.init(1u64, &[2.0f64; 3]).unwrap(),
            ErrorKind::DtypeMismatch,
            "key 1 is float32[3] in the file, float64[3] in the store",
        ),
        (
            |it| it.init(2u64, &[2.0f32; 3]).unwrap(),
            ErrorKind::ShapeMismatch,
            "key 2 is float32[1] in the file, float32[3] in the store",
        ),
        (
            |it| it.init(3u64, &[2i32]).unwrap(),
            ErrorKind::DtypeMismatch,
            "key 3 is int32[1]: the optimizer adam cannot change int32",
        ),
    ];
    for (init, kind, says) in others {
        let other = open();
        init(&other);
        let before = snapshot(&other, &mine);
        refused(other.load(&path), kind, says);
        assert!(snapshot(&other, &mine) == before, "{says}");
        assert_eq!(other.key_name(name).unwrap_err().kind(), ErrorKind::KeyNotFound);
    }
}

#[test]
fn a_file_without_an_optimizer_leaves_the_one_that_is_set() {
    let folder = Folder::new("without");
    let path = folder.file("file");
    let plain = open();
    plain.init(1u64, &[1.0f32]).unwrap();
    plain.save(&path).unwrap();
    let store = open();
    store.init(1u64, &[5.0f32]).unwrap();
    store.set_optimizer("momentum", "learning_rate=1,momentum=0.5").unwrap();
    store.push(1u64, &[1.0f32]).unwrap();
    store.load(&path).unwrap();
    // The momentum of the push before is gone.
    store.push(1u64, &[0.0f32]).unwrap();
    assert_eq!(pull(&store, 1u64, 1), [1.0]);
    store.push(1u64, &[1.0f32]).unwrap();
    assert_eq!(pull(&store, 1u64, 1), [0.0]);
    // Its keys must be such that the optimizer can change them.
    let integers = open();
    integers.init(9u64, &[1i64]).unwrap();
    integers.save(&path).unwrap();
    refused(store.load(&path), ErrorKind::DtypeMismatch, "key 9 is int64[1]");
    assert_eq!(store.keys().unwrap(), [Key::from(1u64)]);
}

#[test]
fn the_optimizer_of_a_file_takes_the_place_of_what_is_set() {
    let folder = Folder::new("optimizer");
    let path = folder.file("file");
    let store = open();
    store.init(1u64, &[1.0f32]).unwrap();
    store.set_optimizer("sgd", "learning_rate=0.5").unwrap();
    store.set_key_hyperparameter(Key::of_name("never interned"), "lr_mult", 4.0).unwrap();
    store.set_key_hyperparameter(2u64, "lr_mult", 2.0).unwrap();
    store.save(&path).unwrap();
    let other = open();
    other.init(2u64, &[0.0f32]).unwrap();
    let held = std::sync::Arc::new(());
    let kept = std::sync::Arc::clone(&held);
    other
        .set_updater(move |_, _, _| {
            let _ = &kept;
            Ok(())
        })
        .unwrap();
    other.load(&path).unwrap();
    assert_eq!(std::sync::Arc::strong_count(&held), 1, "the updater has been dropped");
    let late = other.intern("never interned").unwrap();
    other.init(late, &[0.0f32]).unwrap();
    for key in [1u64.into(), 2u64.into(), late] {
        other.push(key, &[1.0f32]).unwrap();
    }
    assert_eq!(
        [pull(&other, 1u64, 1), pull(&other, 2u64, 1), pull(&other, late, 1)].concat(),
        [0.5, -1.0, -2.0]
    );
}

#[test]
fn an_updater_is_not_saved_and_stays_in_a_load() {
    let folder = Folder::new("updater");
    let path = folder.file("file");
    let store = open();
    store.init(1u64, &[1.0f32]).unwrap();
    store.set_updater(add::<f32>).unwrap();
    store.push(1u64, &[2.0f32]).unwrap();
    store.save(&path).unwrap();
    store.push(1u64, &[4.0f32]).unwrap();
    store.load(&path).unwrap();
    store.push(1u64, &[8.0f32]).unwrap();
    assert_eq!(pull(&store, 1u64, 1), [11.0]);
    let other = loaded(&path);
    other.push(1u64, &[8.0f32]).unwrap();
    assert_eq!(pull(&other, 1u64, 1), [8.0]);
}

#[test]
fn both_calls_come_after_what_their_thread_has_queued() {
    bounded("order of checkpoints", || {
        let folder = Folder::new("order");
        let (path, other) = (folder.file("file"), folder.file("other"));
        let (store, gate) = (open(), Gate::default());
        store.init(1u64, &[0.0f32]).unwrap();
        store.save(&other).unwrap();
        let behind = gate.clone();
        store
            .set_updater(move |key, input, stored| {
                behind.pass();
                add::<f32>(key, input, stored)
            })
            .unwrap();
        let pushed = store.push_owned(1u64, vec![5.0f32], 0).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                gate.wait_for_someone();
                thread::sleep(Duration::from_millis(20));
                gate.open();
            });
            store.save(&path).unwrap();
        });
        pushed.wait(PATIENCE).unwrap();
        assert_eq!(pull(&loaded(&path), 1u64, 1), [5.0]);
        let pushed = store.push_owned(1u64, vec![1.0f32], 0).unwrap();
        store.load(&other).unwrap();
        pushed.wait(PATIENCE).unwrap();
        assert_eq!(pull(&store, 1u64, 1), [0.0]);
    });
}

#[test]
fn a_key_in_use_for_too_long_is_a_timeout_and_changes_nothing() {
    bounded("timeout of checkpoints", || {
        let folder = Folder::new("timeout");
        let path = folder.file("file");
        let store = Store::open("local", &Config::new().with("timeout_ms", "30").unwrap()).unwrap();
        store
            .init_list(&[1u64.into(), 2u64.into()], &[(&[1.0f32]).into(), (&[2.0f32]).into()])
            .unwrap();
        store.save(&path).unwrap();
        let gate = Gate::default();
        let behind = gate.clone();
        store
            .set_updater(move |key, input, stored| {
                behind.pass();
                add::<f32>(key, input, stored)
            })
            .unwrap();
        thread::scope(|scope| {
            scope.spawn(|| store.push(2u64, &[7.0f32]).unwrap());
            gate.wait_for_someone();
            refused(store.save(folder.file("new")), ErrorKind::Timeout, "key 2 is still in use");
            refused(store.load(&path), ErrorKind::Timeout, "nothing has changed");
            gate.open();
        });
        assert_eq!(folder.names(), ["file"]);
        assert_eq!([pull(&store, 1u64, 1), pull(&store, 2u64, 1)].concat(), [1.0, 9.0]);
    });
}

#[test]
fn saves_beside_pushes_have_each_key_between_two_of_them() {
    const COUNT: usize = 50_000;
    bounded("saves beside pushes", || {
        let folder = Folder::new("beside");
        let zeros = vec![0.0f32; COUNT];
        let store = open();
        store.init_list(&[1u64.into(), 2u64.into()], &[(&zeros).into(), (&zeros).into()]).unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for key in [1u64, 2] {
                let (store, over) = (&store, &over);
                scope.spawn(move || {
                    let ones = vec![1.0f32; COUNT];
                    for round in 0.. {
                        // Now and then the state is another one, and grows, beside the saves.
                        if round % 8 == 0 {
                            store.set_optimizer("momentum", "learning_rate=1,momentum=0").unwrap();
                        } else if round % 8 == 1 {
                            store.set_hyperparameter("momentum", 0.5).unwrap();
                        }
                        store.push(key, &ones).unwrap();
                        if over.load(Ordering::SeqCst) {
                            break;
                        }
                    }
                });
            }
            for _ in 0..20 {
                let path = folder.file("file");
                store.save(&path).unwrap();
                let other = loaded(&path);
                for key in [1u64, 2] {
                    let value = pull(&other, key, COUNT);
                    assert!(value.iter().all(|it| *it == value[0]));
                    assert_eq!(other.key_info(key).unwrap().dtype, DType::F32);
                }
            }
            over.store(true, Ordering::SeqCst);
        });
        assert_eq!(folder.names(), ["file"]);
    });
}

#[test]
fn loads_beside_pushes_and_removals_are_all_or_none() {
    bounded("loads beside pushes", || {
        let folder = Folder::new("loads-beside");
        let path = folder.file("file");
        let store = open();
        let both = [Key::from(1u64), Key::from(2u64)];
        store.init_list(&both, &[(&[5.0f32]).into(), (&[5.0f32]).into()]).unwrap();
        store.save(&path).unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    // A load between any two of these.
                    let _ = store.push_list(&both, &[(&[7.0f32]).into(), (&[7.0f32]).into()]);
                    let _ = store.remove(&both);
                }
            });
            for _ in 0..300 {
                store.load(&path).unwrap();
            }
            over.store(true, Ordering::SeqCst);
        });
        store.load(&path).unwrap();
        let (mut one, mut two) = ([0.0f32], [0.0f32]);
        let outs = &mut [TensorMut::from(&mut one), TensorMut::from(&mut two)];
        store.pull_list(&both, outs).unwrap();
        assert_eq!((one, two), ([5.0], [5.0]));
    });
}

#[test]
fn stores_that_refuse_work_refuse_both_calls() {
    let folder = Folder::new("closed");
    let path = folder.file("file");
    let store = std::sync::Arc::new(open());
    store.init(1u64, &[1.0f32]).unwrap();
    store.save(&path).unwrap();
    let (inside, file) = (std::sync::Arc::downgrade(&store), path.clone());
    store
        .set_updater(move |_, _, _| {
            let store = inside.upgrade().ok_or("gone")?;
            refused(store.save(&file), ErrorKind::Reentrant, "updater");
            refused(store.load(&file), ErrorKind::Reentrant, "updater");
            Ok(())
        })
        .unwrap();
    store.push(1u64, &[1.0f32]).unwrap();
    store.close(PATIENCE).unwrap();
    refused(store.save(&path), ErrorKind::Closed, "closed");
    refused(store.load(&path), ErrorKind::Closed, "closed");
}
