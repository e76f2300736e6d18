//! A user's updater, which runs where the keys are.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kvstore::{ErrorKind, Key, Store, Tensor, TensorMut};

use super::job::{Job, failure};

const LIMIT: Duration = Duration::from_secs(20);

/// What an updater has seen: the shape of each key, and whether two ran at once.
#[derive(Default)]
struct Seen {
    shapes: HashMap<Key, Vec<i64>>,
    running: HashSet<Key>,
    most: usize,
    twice: bool,
}

fn set(store: &Store, seen: &Arc<Mutex<Seen>>) {
    let seen = Arc::clone(seen);
    let update = move |key: Key, input: &Tensor<'_>, stored: &mut TensorMut<'_>| {
        {
            let mut seen = seen.lock().unwrap();
            seen.shapes.insert(key, stored.shape().to_vec());
            seen.twice |= !seen.running.insert(key) || input.shape() != stored.shape();
            seen.most = seen.most.max(seen.running.len());
        }
        thread::sleep(Duration::from_millis(20));
        let input = input.as_slice::<f32>().ok_or("another dtype")?;
        let stored = stored.as_mut_slice::<f32>().ok_or("another dtype")?;
        stored.iter_mut().zip(input).for_each(|(stored, input)| *stored = 2.0 * *stored + *input);
        seen.lock().unwrap().running.remove(&key);
        Ok(())
    };
    store.set_updater(update).unwrap();
}

#[test]
fn an_updater_gets_whole_keys_one_call_at_a_time() {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let servers = Arc::clone(&seen);
    let job = Job::new(2, 2).with("slice_bytes", 8192);
    let name = job.run_with(
        move |store| set(store, &servers),
        |store, rank| {
            let name = store.intern("w").unwrap();
            let keys = [Key::from(1u64), Key::from(2u64), Key::from(3u64), name];
            let (large, small) = (vec![1.0f32; 9_000], [1.0f32; 6]);
            for key in &keys[..3] {
                store.init(*key, Tensor::new(&large, &[90, 100]).unwrap()).unwrap();
            }
            store.init(name, Tensor::new(&small, &[2, 3]).unwrap()).unwrap();
            for _ in 0..3 {
                let gradient = vec![rank as f32 + 1.0; 9_000];
                let large = Tensor::new(&gradient, &[90, 100]).unwrap();
                let small = Tensor::new(&gradient[..6], &[2, 3]).unwrap();
                store.push_list(&keys, &[large, large, large, small]).unwrap();
            }
            // ((1 * 2 + 3) * 2 + 3) * 2 + 3
            let mut out = vec![0.0f32; 9_000];
            store.pull(2u64, TensorMut::new(&mut out, &[90, 100]).unwrap()).unwrap();
            assert!(out.iter().all(|it| *it == 29.0));
            store.pull(name, TensorMut::new(&mut out[..6], &[2, 3]).unwrap()).unwrap();
            assert_eq!(out[..6], [29.0; 6]);
            name
        },
    )[0];
    let seen = seen.lock().unwrap();
    assert!(!seen.twice);
    assert!(seen.most > 1, "keys do not wait for each other");
    let large = |key: u64| (Key::from(key), vec![90, 100]);
    let expected = HashMap::from([large(1), large(2), large(3), (name, vec![2, 3])]);
    assert_eq!(seen.shapes, expected);
}

/// Fails for numbers below 0, and panics for those below -100.
fn set_choosy(store: &Store) {
    let update = |_: Key, input: &Tensor<'_>, stored: &mut TensorMut<'_>| {
        let input = input.as_slice::<f32>().ok_or("another dtype")?;
        assert!(input[0] >= -100.0, "far too little");
        if input[0] < 0.0 {
            return Err("too little".into());
        }
        stored.as_mut_slice::<f32>().ok_or("another dtype")?[0] += input[0];
        Ok(())
    };
    store.set_updater(update).unwrap();
}

#[test]
fn a_pull_of_a_round_whose_updater_failed_says_why() {
    Job::new(2, 1).run_with(set_choosy, |store, rank| {
        store.init(1u64, &[5.0f32; 1]).unwrap();
        store.init(2u64, &[5.0f32; 1]).unwrap();
        let mut out = [0.0f32; 1];
        for (value, why) in [(-1.0f32, "too little"), (-500.0, "far too little")] {
            let began = Instant::now();
            store.push(1u64, &[value]).unwrap();
            let text = failure(store.pull(1u64, &mut out), ErrorKind::Callback);
            assert!(text.contains("key 1") && text.contains(why), "{text}");
            assert!(began.elapsed() < Duration::from_secs(5));
            // Other keys, and later rounds of this one, are as good as before.
            store.push(2u64, &[1.0f32]).unwrap();
            store.pull(2u64, &mut out).unwrap();
        }
        assert_eq!(out, [9.0]);
        // Nobody goes on before both have been told.
        store.barrier(LIMIT).unwrap();
        store.push(1u64, &[rank as f32]).unwrap();
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [6.0]);
    });
}

#[test]
fn an_updater_is_for_servers() {
    let keep = |_: Key, _: &Tensor<'_>, _: &mut TensorMut<'_>| Ok(());
    Job::new(1, 1).run(move |store, _| {
        let text = failure(store.set_updater(keep), ErrorKind::Role);
        assert!(text.contains("server_updater=yes"), "{text}");
        failure(store.serve(), ErrorKind::Role);
    });
    let results = Job::new(2, 1).with("server_updater", "yes").run(move |store, rank| {
        store.set_updater(keep).unwrap();
        store.init(1u64, &[5.0f32; 2]).unwrap();
        store.push(1u64, &[rank as f32 + 1.0; 2]).unwrap();
        let mut out = [0.0f32; 2];
        store.pull(1u64, &mut out).unwrap();
        out[1]
    });
    // It has no effect there: the servers have none and assign.
    assert_eq!(results, [3.0, 3.0]);
}

#[test]
fn servers_refuse_what_only_workers_do() {
    let refused = |store: &Store| {
        let mut out = [0.0f32; 2];
        failure(store.init(1u64, &out), ErrorKind::Role);
        failure(store.push(1u64, &out), ErrorKind::Role);
        let text = failure(store.pull(1u64, &mut out), ErrorKind::Role);
        assert!(text.contains("server"), "{text}");
        failure(store.barrier(LIMIT), ErrorKind::Role);
        failure(store.done(), ErrorKind::Role);
        failure(store.set_compression("2bit", ""), ErrorKind::Role);
        assert_eq!(store.num_workers(), 1);
    };
    Job::new(1, 1).run_with(refused, |store, _| store.init(1u64, &[1.0f32]).unwrap());
}
