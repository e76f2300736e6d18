//! Workers of unequal speed: whose round a pull sees, and who waits for whom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvstore::ErrorKind::{InvalidArgument, Timeout};
use kvstore::Store;

use super::job::{Job, failure};

const LIMIT: Duration = Duration::from_secs(20);
const A_WHILE: Duration = Duration::from_millis(150);

fn pull(store: &Store, key: u64, count: usize) -> f32 {
    let mut out = vec![0.0f32; count];
    store.pull(key, &mut out).unwrap();
    assert!(out.iter().all(|it| *it == out[0]));
    out[0]
}

#[test]
fn a_pull_sees_the_round_of_its_own_last_push() {
    // Two slices on two servers, and a small key.
    for count in [4_096, 3] {
        let job = Job::new(2, 2).with("max_rounds_ahead", 3).with("slice_bytes", 8192);
        let results = job.run(move |store, rank| {
            store.init(1u64, &vec![0.5f32; count]).unwrap();
            let mut seen = vec![pull(store, 1, count)];
            if rank == 0 {
                // Three rounds ahead of the other.
                for value in [1.0, 10.0, 100.0] {
                    store.push(1u64, &vec![value; count]).unwrap();
                }
                store.barrier(LIMIT).unwrap();
                seen.push(pull(store, 1, count));
            } else {
                store.barrier(LIMIT).unwrap();
                // Without a push of its own it sees no round.
                seen.push(pull(store, 1, count));
                for value in [1_000.0, 10_000.0, 100_000.0] {
                    store.push(1u64, &vec![value; count]).unwrap();
                    seen.push(pull(store, 1, count));
                }
            }
            seen
        });
        assert_eq!(results[0], [0.5, 100_100.0]);
        assert_eq!(results[1], [0.5, 0.5, 1_001.0, 10_010.0, 100_100.0]);
    }
}

#[test]
fn a_worker_waits_when_it_is_too_far_ahead() {
    for ahead in [1usize, 2] {
        let pushed = Arc::new(AtomicUsize::new(0));
        Job::new(2, 1).with("max_rounds_ahead", ahead).run(move |store, rank| {
            store.init(1u64, &[0.0f32; 3]).unwrap();
            store.barrier(LIMIT).unwrap();
            for round in 1..=4 {
                if rank == 1 {
                    thread::sleep(A_WHILE);
                    pushed.store(round, Ordering::SeqCst);
                }
                store.push(1u64, &[1.0f32; 3]).unwrap();
                let closed = pushed.load(Ordering::SeqCst);
                assert!(closed + ahead >= round, "round {round}, {closed} closed, {ahead} ahead");
            }
            assert_eq!(pull(store, 1, 3), 2.0);
        });
    }
}

#[test]
fn who_is_too_far_ahead_for_too_long_is_told_for_whom_it_waits() {
    let job = Job::new(2, 2).with("timeout_ms", 600).with("slice_bytes", 8192);
    job.run(|store, rank| {
        let count = 5_000;
        store.init(7u64, &vec![0.0f32; count]).unwrap();
        if rank == 0 {
            store.push(7u64, &vec![1.0; count]).unwrap();
            let mut out = vec![0.0f32; count];
            let began = Instant::now();
            let text = failure(store.pull(7u64, &mut out), Timeout);
            assert!(text.contains("pull: key 7, round 1"), "{text}");
            assert!(text.contains("waiting for worker 1"), "{text}");
            assert!(began.elapsed() < Duration::from_secs(2));
            let text = failure(store.push(7u64, &vec![10.0; count]), Timeout);
            assert!(text.contains("push: key 7, round 2"), "{text}");
            assert!(text.contains("waiting for worker 1"), "{text}");
            let text = failure(store.barrier(Duration::from_millis(300)), Timeout);
            assert!(text.contains("barrier") && text.contains("waiting for worker 1"), "{text}");
        } else {
            thread::sleep(Duration::from_secs(2));
            store.push(7u64, &vec![100.0; count]).unwrap();
            assert_eq!(pull(store, 7, count), 101.0);
            // What nobody waits for any more still happens, once.
            store.push(7u64, &vec![1_000.0; count]).unwrap();
            assert_eq!(pull(store, 7, count), 1_010.0);
        }
    });
}

#[test]
fn workers_with_different_orders_of_keys_learn_the_remedy() {
    Job::new(2, 2).with("timeout_ms", 600).run(|store, rank| {
        for key in [7u64, 8] {
            store.init(key, &[0.0f32; 3]).unwrap();
        }
        store.barrier(LIMIT).unwrap();
        let order = if rank == 0 { [7u64, 8] } else { [8, 7] };
        store.push(order[0], &[1.0f32; 3]).unwrap();
        let text = failure(store.pull(order[0], &mut [0.0f32; 3]), Timeout);
        assert!(text.contains(&format!("pull: key {}, round 1", order[0])), "{text}");
        assert!(text.contains(&format!("waiting for worker {}", 1 - rank)), "{text}");
        assert!(text.contains("in the same order, in one list, or with tickets"), "{text}");
        // Both now make the other push, neither while the other one still waits.
        store.barrier(LIMIT).unwrap();
        store.push(order[1], &[1.0f32; 3]).unwrap();
        store.barrier(LIMIT).unwrap();
        assert_eq!(order.map(|key| pull(store, key, 3)), [2.0; 2]);
    });
}

#[test]
fn nobody_waits_for_who_is_done_or_has_closed() {
    let results = Job::new(3, 2).with("slice_bytes", 8192).run(|store, rank| {
        let count = 5_000;
        store.init(1u64, &vec![0.0f32; count]).unwrap();
        let mut seen = Vec::new();
        for round in 0..[6, 2, 1][rank] {
            store.push(1u64, &vec![[1.0, 10.0, 100.0][rank]; count]).unwrap();
            seen.push((round, pull(store, 1, count)));
        }
        if rank == 1 {
            store.done().unwrap();
            let text = failure(store.push(1u64, &vec![1.0f32; count]), InvalidArgument);
            assert!(text.contains("done"), "{text}");
            // Of a round that is not its own: slices may be of different ones.
            let mut out = vec![0.0f32; count];
            store.pull(1u64, &mut out).unwrap();
            assert!(out.iter().all(|it| [1.0, 11.0].contains(it)));
        }
        // The last one closes.
        seen
    });
    let values = |rank: usize| results[rank].iter().map(|(_, value)| *value).collect::<Vec<_>>();
    assert_eq!(values(0), [111.0, 11.0, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!(values(1), [111.0, 11.0]);
    assert_eq!(values(2), [111.0]);
}

#[test]
fn pushes_that_wait_for_nobody_are_all_applied_once() {
    let job = Job::of("dist_async", 3, 2).with("slice_bytes", 8192);
    let results = job.run(|store, rank| {
        let (count, pushes) = (5_000, 10 + 7 * rank);
        store.init(1u64, &vec![0.5f32; count]).unwrap();
        store.set_optimizer("test", "").unwrap();
        let mut before = 0.0;
        for push in 1..=pushes {
            store.push(1u64, &vec![1.0f32; count]).unwrap();
            if push % 4 == 0 {
                // Slices of a key may be of different moments; each has all of its own pushes.
                let mut out = vec![0.0f32; count];
                store.pull(1u64, &mut out).unwrap();
                assert!(out[0] >= push as f32 && out[0] >= before, "{}", out[0]);
                before = out[0];
            }
        }
        store.barrier(LIMIT).unwrap();
        pull(store, 1, count)
    });
    assert_eq!(results, [0.5 + 10.0 + 17.0 + 24.0; 3]);
}

#[test]
fn without_a_rule_the_last_push_that_came_is_the_value() {
    let results = Job::of("dist_async", 2, 1).run(|store, rank| {
        store.init(1u64, &[0.0f32; 3]).unwrap();
        store.push(1u64, &[rank as f32 + 1.0; 3]).unwrap();
        store.barrier(LIMIT).unwrap();
        pull(store, 1, 3)
    });
    assert!(results[0] == results[1] && [1.0, 2.0].contains(&results[0]), "{results:?}");
}

#[test]
fn nobody_leads_the_slowest_by_more_than_the_staleness() {
    for staleness in [0usize, 2] {
        let made = Arc::new(AtomicUsize::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let job = Job::of("dist_async", 2, 2).with("staleness", staleness);
        let results = job.with("slice_bytes", 8192).run(move |store, rank| {
            let count = 5_000;
            store.init(1u64, &vec![0.0f32; count]).unwrap();
            store.set_optimizer("test", "").unwrap();
            store.barrier(LIMIT).unwrap();
            for push in 1..=6 {
                if rank == 1 {
                    if push == 5 {
                        // The other need not wait for what will not come.
                        over.store(true, Ordering::SeqCst);
                        store.done().unwrap();
                        break;
                    }
                    thread::sleep(A_WHILE / 2);
                    made.store(push, Ordering::SeqCst);
                }
                store.push(1u64, &vec![1.0f32; count]).unwrap();
                let lead = push.saturating_sub(made.load(Ordering::SeqCst));
                assert!(over.load(Ordering::SeqCst) || lead <= staleness, "{push}: {lead} ahead");
            }
            // What the other has pushed may still come, slice by slice.
            let (end, mut out) = (Instant::now() + LIMIT, vec![0.0f32; count]);
            while rank == 0 && out.iter().any(|it| *it != 10.0) {
                assert!(Instant::now() < end, "{:?}", out[0]);
                store.pull(1u64, &mut out).unwrap();
            }
            out[0]
        });
        assert_eq!(results[0], 10.0);
    }
}

#[test]
fn with_staleness_nobody_waits_for_ever() {
    for staleness in [0, 1, 3] {
        let job = Job::of("dist_async", 3, 2).with("staleness", staleness);
        let results = job.run(|store, rank| {
            for key in [1u64, 2] {
                store.init(key, &[0.0f32; 5]).unwrap();
            }
            store.set_optimizer("test", "").unwrap();
            let pushes = 12 - 2 * rank as u64;
            for push in 0..pushes {
                store.push(1 + push % 2, &[1.0f32; 5]).unwrap();
            }
            store.done().unwrap();
            pushes
        });
        assert_eq!(results, [12, 10, 8]);
    }
}

#[test]
fn who_leads_for_too_long_is_told_for_whom_it_waits() {
    let job = Job::of("dist_async", 2, 1).with("staleness", 1).with("timeout_ms", 600);
    job.run(|store, rank| {
        store.init(1u64, &[0.0f32; 3]).unwrap();
        if rank == 0 {
            store.push(1u64, &[1.0f32; 3]).unwrap();
            let text = failure(store.push(1u64, &[1.0f32; 3]), Timeout);
            assert!(text.contains("push: key 1"), "{text}");
            assert!(text.contains("waiting for worker 1"), "{text}");
        } else {
            thread::sleep(Duration::from_secs(1));
        }
    });
}
