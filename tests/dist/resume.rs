//! `resume`: workers that were done, and others, go on together.

use std::thread;
use std::time::Duration;

use kvstore::ErrorKind::{InvalidArgument, PeerLost, Role, Timeout};
use kvstore::Store;

use super::job::{Job, both, failure};

const LIMIT: Duration = Duration::from_secs(60);

/// Batches of a worker in an epoch.
fn batches(rank: usize, epoch: usize) -> usize {
    [[3, 1, 2], [1, 4, 0], [2, 2, 2]][epoch][rank]
}

fn pull(store: &Store, key: u64) -> f32 {
    let mut out = vec![0f32; 3_000];
    store.pull(key, &mut out).unwrap();
    assert!(out.iter().all(|it| *it == out[0]));
    out[0]
}

/// Sums of a rule that adds: each epoch has the batches of all workers, and the next one waits for all again.
#[test]
fn epochs_of_unequal_batches_follow_each_other() {
    for (servers, ahead) in [(1, 1), (2, 3)] {
        let job = Job::new(3, servers).with("slice_bytes", 8_192).with("max_rounds_ahead", ahead);
        let results = job.run(move |store, rank| {
            store.init(1u64, &vec![0f32; 3_000]).unwrap();
            store.init(2u64, &vec![0f32; 3_000]).unwrap();
            store.set_optimizer("test", "rescale_grad=1").unwrap();
            let mut seen = Vec::new();
            for epoch in 0..3 {
                let mine = batches(rank, epoch);
                for batch in 0..mine {
                    // Key 2 has a push in the first epoch alone.
                    let keys = if epoch == 0 && batch == 0 { 1..3 } else { 1..2u64 };
                    for key in keys {
                        store.push(key, &vec![(rank + 1) as f32; 3_000]).unwrap();
                    }
                    pull(store, 1);
                }
                store.done().unwrap();
                store.resume(LIMIT).unwrap();
                seen.push(pull(store, 1));
            }
            store.push(2u64, &vec![10f32; 3_000]).unwrap();
            seen.push(pull(store, 2));
            let round = store.last_round(2u64).unwrap();
            assert_eq!(round.contributors, 3, "{round:?}");
            store.init(3u64, &vec![0f32; 3_000]).unwrap();
            store.push(3u64, &vec![1f32; 3_000]).unwrap();
            seen.push(pull(store, 3));
            seen
        });
        let mut sum = 0.0;
        let mut expected = Vec::new();
        for epoch in 0..3 {
            sum += (0..3).map(|rank| ((rank + 1) * batches(rank, epoch)) as f32).sum::<f32>();
            expected.push(sum);
        }
        expected.extend([36.0, 3.0]);
        assert!(results.iter().all(|seen| *seen == expected), "{results:?} and not {expected:?}");
    }
}

/// A round behind a resume waits for the worker that was done before it.
#[test]
fn rounds_and_barriers_wait_again_for_a_worker_that_was_done() {
    let job = Job::new(2, 2).with("timeout_ms", 400);
    let (others, [first, second]) = job.start_with_two();
    both([&first, &second], |store| store.init(1u64, &[0f32; 4]).unwrap());
    first.done().unwrap();
    for _ in 0..3 {
        second.push(1u64, &[1f32; 4]).unwrap();
    }
    second.barrier(LIMIT).unwrap();
    second.barrier(LIMIT).unwrap();
    second.set_hyperparameter("learning_rate", 1.0).unwrap_err();
    second.set_optimizer("test", "rescale_grad=2").unwrap();
    // One alone waits, and says for whom; the next call joins it.
    let text = failure(second.resume(Duration::from_millis(300)), Timeout);
    assert!(text.contains("resume 1") && text.contains("waiting for worker 0"), "{text}");
    let text = failure(second.push(1u64, &[1f32; 4]), InvalidArgument);
    assert!(text.contains("this worker is done"), "{text}");
    both([&first, &second], |store| store.resume(LIMIT).unwrap());
    let mut out = [0f32; 4];
    second.push(1u64, &[1f32; 4]).unwrap();
    let text = failure(second.pull(1u64, &mut out), Timeout);
    assert!(text.contains("round 4") && text.contains("worker 0"), "{text}");
    failure(second.barrier(Duration::from_millis(200)), Timeout);
    first.push(1u64, &[2f32; 4]).unwrap();
    first.pull(1u64, &mut out).unwrap();
    // The value of the third round, and the rule that the first worker has learned of.
    assert_eq!(out, [7.0; 4]);
    first.barrier(LIMIT).unwrap();
    second.barrier(LIMIT).unwrap();
    both([&first, &second], |store| store.set_optimizer("test", "rescale_grad=1").unwrap());
    both([&first, &second], |store| {
        store.push(1u64, &[1f32; 4]).unwrap();
        let mut out = [0f32; 4];
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [9.0; 4]);
    });
    // Twice in a row, and with nobody done.
    both([&first, &second], |store| store.resume(LIMIT).unwrap());
    both([&first, &second], |store| store.resume(LIMIT).unwrap());
    both([&first, &second], |store| store.push(1u64, &[1f32; 4]).unwrap());
    first.close(LIMIT).unwrap();
    second.close(LIMIT).unwrap();
    drop(others.end());
}

#[test]
fn without_rounds_the_slowest_worker_counts_anew() {
    let job = Job::of("dist_async", 2, 1).with("staleness", 2).with("timeout_ms", 500);
    let (others, [first, second]) = job.start_with_two();
    both([&first, &second], |store| {
        store.init(1u64, &[0f32]).unwrap();
        store.set_optimizer("test", "rescale_grad=1").unwrap();
    });
    first.done().unwrap();
    (0..9).for_each(|_| second.push(1u64, &[1f32]).unwrap());
    both([&first, &second], |store| store.resume(LIMIT).unwrap());
    (0..2).for_each(|_| second.push(1u64, &[1f32]).unwrap());
    let text = failure(second.push(1u64, &[1f32]), Timeout);
    assert!(text.contains("worker 0"), "{text}");
    (0..3).for_each(|_| first.push(1u64, &[1f32]).unwrap());
    let mut out = [0f32];
    first.pull(1u64, &mut out).unwrap();
    assert!((14.0..=15.0).contains(&out[0]), "{out:?}");
    first.close(LIMIT).unwrap();
    second.close(LIMIT).unwrap();
    drop(others.end());
}

#[test]
fn a_worker_that_is_lost_ends_a_resume_or_is_left_out() {
    for goes_on in [false, true] {
        let on_loss = if goes_on { "continue" } else { "fail" };
        let job = Job::new(3, 2).with("on_worker_loss", on_loss);
        let others = job.start();
        let mut stores = job.open_all(&others.root).into_iter().map(Result::unwrap);
        let [first, second, third] = [(); 3].map(|()| stores.next().unwrap());
        thread::scope(|scope| {
            let _ = [&first, &second, &third]
                .map(|store| scope.spawn(|| store.init(1u64, &[0f32; 4]).unwrap()));
        });
        third.push(1u64, &[8f32; 4]).unwrap();
        let result = thread::scope(|scope| {
            let waiting = [&first, &second].map(|store| scope.spawn(|| store.resume(LIMIT)));
            thread::sleep(Duration::from_millis(200));
            drop(third);
            waiting.map(|it| it.join().unwrap())
        });
        for result in result {
            if goes_on {
                result.unwrap();
            } else {
                let text = failure(result, PeerLost);
                assert!(text.contains("worker 2"), "{text}");
            }
        }
        if goes_on {
            both([&first, &second], |store| {
                store.push(1u64, &[1f32; 4]).unwrap();
                let mut out = [0f32; 4];
                store.pull(1u64, &mut out).unwrap();
                assert_eq!(out, [2.0; 4]);
                assert_eq!(store.last_round(1u64).unwrap().contributors, 2);
            });
        }
        first.close(LIMIT).unwrap();
        second.close(LIMIT).unwrap();
        drop(others.end());
    }
}

#[test]
fn a_reader_takes_no_part() {
    let (others, [worker, reader]) = Job::new(2, 1).start_with_reader();
    worker.init(1u64, &[3.0f32; 4]).unwrap();
    failure(reader.resume(LIMIT), Role);
    worker.done().unwrap();
    worker.resume(LIMIT).unwrap();
    worker.push(1u64, &[4.0f32; 4]).unwrap();
    let mut out = [0f32; 4];
    worker.pull(1u64, &mut out).unwrap();
    reader.pull(1u64, &mut out).unwrap();
    assert_eq!(out, [4.0; 4]);
    worker.close(LIMIT).unwrap();
    reader.close(LIMIT).unwrap();
    drop(others.end());
}
