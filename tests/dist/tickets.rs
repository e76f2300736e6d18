//! Operations with tickets, and several threads on one worker's store.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use kvstore::ErrorKind::{self, Cancelled, Closed, PeerLost, Timeout};
use kvstore::{Error, Key, Pending, Result, Tensor, TensorMut};

use super::common::wait::soon;
use super::job::{Job, failure};

const LIMIT: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_millis(100);

#[test]
fn operations_with_tickets_take_effect_in_the_order_of_the_calls() {
    let results = Job::new(2, 2).with("slice_bytes", 8192).run(|store, rank| {
        let count = 9_000;
        store.init(1u64, &vec![0.5f32; count]).unwrap();
        store.set_optimizer("test", "").unwrap();
        let pushed = store.push_owned(1u64, vec![rank as f32 + 1.0; count], 3).unwrap();
        let first = store.pull_owned(1u64, vec![0.0f32; count], -3).unwrap();
        let again = store.push_owned(1u64, vec![10.0f32; count], 0).unwrap();
        let second = store.pull_owned(1u64, vec![0.0f32; count], 9).unwrap();
        let second = second.wait(LIMIT).unwrap();
        let first = first.wait(LIMIT).unwrap();
        assert_eq!(pushed.wait(LIMIT).unwrap()[0], rank as f32 + 1.0);
        assert_eq!(again.wait(LIMIT).unwrap().len(), count);
        store.wait_all(LIMIT).unwrap();
        assert!([&first, &second].iter().all(|out| out.iter().all(|it| *it == out[0])));
        [first[0], second[0]]
    });
    assert_eq!(results, [[3.5, 23.5]; 2]);
}

#[test]
fn many_operations_of_a_scope_are_all_done_at_its_end() {
    Job::new(2, 2).run(|store, rank| {
        let keys: Vec<Key> = (0..40u64).map(Key::from).collect();
        let values: Vec<Vec<f32>> = (0..40).map(|key| vec![(key + rank) as f32; 50]).collect();
        let mut outs = vec![vec![0.0f32; 50]; 40];
        let tensors: Vec<Tensor<'_>> = values.iter().map(Tensor::from).collect();
        store.init_list(&keys, &tensors).unwrap();
        for _ in 0..3 {
            store
                .scope(LIMIT, |scope| {
                    for (priority, ((key, value), out)) in
                        (0..).zip(keys.iter().zip(&values).zip(&mut outs))
                    {
                        scope.push_list(&[*key], &[value.into()], priority)?;
                        scope.pull_list(&[*key], vec![TensorMut::from(out)], priority)?;
                    }
                    Ok(())
                })
                .unwrap();
            for (key, out) in outs.iter().enumerate() {
                assert_eq!(out[49], (2 * key + 1) as f32);
            }
        }
    });
}

#[test]
fn the_ends_of_operations_are_told() {
    let has_pushed = Arc::new(AtomicBool::new(false));
    let is_over = Arc::new(AtomicBool::new(false));
    Job::new(2, 2).run(move |store, rank| {
        let (sender, told) = mpsc::channel();
        let listen = |pending: &Pending<'_, f32>, name: &'static str| {
            let sender = sender.clone();
            let tell = move |result: &Result<()>| {
                let kind = result.as_ref().err().map(Error::kind);
                sender.send((name, kind)).unwrap();
            };
            pending.on_done(tell).unwrap();
        };
        store.init(1u64, &[0.5f32; 9]).unwrap();
        if rank == 0 {
            // Ends when the other worker pushes, which waits for this one.
            store.push(1u64, &[1.0f32; 9]).unwrap();
            let pulled = store.pull_owned(1u64, vec![0.0f32; 9], 0).unwrap();
            listen(&pulled, "pull");
            assert!(told.try_recv().is_err());
            store.barrier(LIMIT).unwrap();
            assert_eq!(told.recv_timeout(LIMIT), Ok(("pull", None)));
            let late = store.push_owned(1u64, vec![1.0f32; 9], 0).unwrap();
            let pulled = store.pull_owned(1u64, vec![0.0f32; 9], 0).unwrap();
            listen(&pulled, "second pull");
            drop(late);
            drop(pulled);
            assert_eq!(told.recv_timeout(LIMIT), Ok(("second pull", Some(Cancelled))));
            let lost = store.pull_owned(1u64, vec![0.0f32; 9], 0).unwrap();
            listen(&lost, "third pull");
            // A push that has not returned fails by the loss of this worker, though its round is over.
            soon(LIMIT, || has_pushed.load(Ordering::SeqCst));
            store.abort();
            assert_eq!(told.recv_timeout(LIMIT), Ok(("third pull", Some(Closed))));
            is_over.store(true, Ordering::SeqCst);
        } else {
            store.barrier(LIMIT).unwrap();
            store.push(1u64, &[1.0f32; 9]).unwrap();
            has_pushed.store(true, Ordering::SeqCst);
            // No round waits for a worker that is done.
            soon(LIMIT, || is_over.load(Ordering::SeqCst));
        }
    });
}

#[test]
fn waiting_for_a_ticket_is_bounded_and_cancelling_ends_the_loan() {
    Job::new(2, 1).run(|store, rank| {
        let count = 50_000;
        store.init(1u64, &vec![0.0f32; count]).unwrap();
        if rank == 0 {
            store.push(1u64, &vec![1.0f32; count]).unwrap();
            let began = Instant::now();
            let pulled = store.pull_owned(1u64, vec![0.0f32; count], 0).unwrap();
            assert!(!pulled.is_done());
            failure(pulled.wait(SOON), Timeout);
            // Too far ahead: it waits here, and its value is copied when it is cancelled.
            let value = vec![10.0f32; count];
            let result =
                store.scope(SOON, |scope| scope.push_list(&[1u64.into()], &[(&value).into()], 0));
            failure(result, Timeout);
            drop(value);
            let mut value = vec![0.0f32; count];
            let mut out = vec![7.0f32; count];
            let result = store.scope(LIMIT, |scope| {
                scope.pull_list(&[1u64.into()], vec![(&mut out).into()], 0)?;
                Err::<(), _>(store.key_info(99u64).unwrap_err())
            });
            failure(result, ErrorKind::KeyNotFound);
            out.fill(8.0);
            assert!(began.elapsed() < Duration::from_secs(5));
            store.barrier(LIMIT).unwrap();
            store.pull(1u64, &mut value).unwrap();
            assert!(value.iter().all(|it| *it == 1_010.0));
            assert!(out.iter().all(|it| *it == 8.0), "written after it was given back");
        } else {
            store.barrier(LIMIT).unwrap();
            store.push(1u64, &vec![100.0f32; count]).unwrap();
            store.push(1u64, &vec![1_000.0f32; count]).unwrap();
        }
    });
}

#[test]
fn a_failure_that_nobody_waited_for_is_kept() {
    let job = Job::new(2, 1);
    let others = job.start();
    let [first, second] = job.open_all(&others.root).try_into().unwrap();
    let (first, second) = (first.unwrap(), second.unwrap());
    first.init(1u64, &[1.0f32; 3]).unwrap();
    first.push(1u64, &[1.0f32; 3]).unwrap();
    // Dropping it would cancel it.
    mem::forget(first.pull_owned(1u64, vec![0.0f32; 3], 0).unwrap());
    failure(first.wait_all(SOON), Timeout);
    drop(second);
    let text = failure(first.wait_all(LIMIT), PeerLost);
    assert!(text.contains("pull: key 1") && text.contains("worker 1"), "{text}");
    first.wait_all(LIMIT).unwrap();
    failure(first.push_owned(1u64, vec![1.0f32; 3], 0).map(drop), PeerLost);
    first.close(LIMIT).unwrap();
    drop(others.end());
}

#[test]
fn threads_of_one_worker_do_not_disturb_each_other() {
    const THREADS: usize = 4;
    let results = Job::new(2, 2).with("slice_bytes", 8192).run(|store, rank| {
        let ready = Barrier::new(THREADS);
        thread::scope(|scope| {
            for key in 0..THREADS {
                let ready = &ready;
                scope.spawn(move || {
                    let count = if key % 2 == 0 { 5_000 } else { 20 };
                    let mut out = vec![0.0f32; count];
                    ready.wait();
                    store.init(key as u64, &vec![0.0f32; count]).unwrap();
                    for round in 1..=30 {
                        let value = vec![(rank + 1) as f32 * round as f32; count];
                        store.push(key as u64, &value).unwrap();
                        store.pull(key as u64, &mut out).unwrap();
                        assert!(out.iter().all(|it| *it == 3.0 * round as f32));
                    }
                });
            }
        });
        let keys = store.keys().unwrap();
        // Threads on one key: each push counts once.
        store.init(9u64, &[0.0f32; 4]).unwrap();
        store.set_optimizer("test", "").unwrap();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..10 {
                        store.push(9u64, &[1.0f32; 4]).unwrap();
                        store.pull(9u64, &mut [0.0f32; 4]).unwrap();
                    }
                });
            }
        });
        let mut out = [0.0f32; 4];
        store.pull(9u64, &mut out).unwrap();
        (keys.len(), out)
    });
    assert_eq!(results, [(THREADS, [80.0; 4]); 2]);
}
