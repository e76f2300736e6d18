//! Asking for a key before it is initialised: "pull, else init" comes to an end on all ranks.

use std::thread;
use std::time::{Duration, Instant};

use kvstore::ErrorKind::{KeyNotFound, Timeout};
use kvstore::{Result, Store, Tensor, TensorMut};

use super::job::{Job, failure};

const KEY: u64 = 7;
const LIMIT: Duration = Duration::from_secs(40);
/// Far below the time limit of a call, far above a round trip.
const AT_ONCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(80);

/// A call that asks for a key, under its name.
type Asking = (&'static str, fn(&Store) -> Result<()>);

const ASKING: [Asking; 6] = [
    ("pull", |store| store.pull(KEY, &mut [0.0f32; 4])),
    ("push", |store| store.push(KEY, &[1.0f32; 4])),
    ("pushpull", |store| {
        let (value, mut out) = ([1.0f32; 4], [0.0f32; 4]);
        store.pushpull_list(
            &[KEY.into()],
            &[Tensor::from(&value)],
            &[KEY.into()],
            &mut [TensorMut::from(&mut out)],
        )
    }),
    ("push_rows", |store| store.push_rows(KEY, &[0i64][..], &[1.0f32; 4])),
    ("pull_rows", |store| store.pull_rows(KEY, &[0i64][..], &mut [0.0f32; 4])),
    ("key_info", |store| store.key_info(KEY).map(drop)),
];

/// Rank 1 is in its init, and rank 0, whose value it waits for, asks for the key.
fn ask_else_init(store: &Store, rank: usize, asking: &Asking) {
    if rank == 0 {
        thread::sleep(PAUSE);
        let began = Instant::now();
        let text = failure(asking.1(store), KeyNotFound);
        assert!(began.elapsed() < AT_ONCE, "{}: after {:?}", asking.0, began.elapsed());
        assert!(text.starts_with(asking.0) && text.contains("key 7"), "{}: {text}", asking.0);
    }
    store.init(KEY, &[rank as f32 + 1.0; 4]).unwrap();
    let mut out = [0.0f32; 4];
    store.pull(KEY, &mut out).unwrap();
    assert_eq!(out, [1.0; 4], "{}", asking.0);
}

#[test]
fn the_worker_whose_value_all_wait_for_is_told_at_once() {
    Job::new(2, 2).run(|store, rank| {
        for asking in &ASKING {
            ask_else_init(store, rank, asking);
            store.push(KEY, &[rank as f32 + 2.0; 4]).unwrap();
            let mut out = [0.0f32; 4];
            store.pull(KEY, &mut out).unwrap();
            assert_eq!(out, [5.0; 4], "{}", asking.0);
            // The next one begins without a barrier.
            store.remove(&[KEY.into()]).unwrap();
        }
    });
}

#[test]
fn other_workers_wait_until_the_init_ends() {
    Job::new(3, 1).run(|store, rank| match rank {
        0 => {
            thread::sleep(3 * PAUSE);
            ask_else_init(store, rank, &ASKING[0]);
        }
        1 => {
            // Once rank 2 waits in its init, this call waits for rank 0 as well.
            let mut out = [0.0f32; 4];
            let mut pull = || store.pull(KEY, &mut out);
            while pull().is_err_and(|error| error.kind() == KeyNotFound) {}
            assert_eq!(out, [1.0; 4]);
            store.init(KEY, &[9.0f32; 4]).unwrap();
        }
        _ => ask_else_init(store, rank, &ASKING[0]),
    });
}

#[test]
fn a_key_whose_init_was_given_up_is_one_that_no_rank_initialises() {
    let job = Job::new(3, 1).with("timeout_ms", 600);
    job.run(|store, rank| {
        if rank == 2 {
            failure(store.init(KEY, &[1.0f32; 4]), Timeout);
        }
        store.barrier(LIMIT).unwrap();
        if rank == 1 {
            let text = failure(store.pull(KEY, &mut [0.0f32; 4]), KeyNotFound);
            assert!(text.contains("key 7"), "{text}");
        }
        store.barrier(LIMIT).unwrap();
        while store.init(KEY, &[rank as f32; 4]).is_err_and(|it| it.kind() == Timeout) {}
        store.barrier(LIMIT).unwrap();
        let mut out = [5.0f32; 4];
        store.pull(KEY, &mut out).unwrap();
        assert_eq!(out, [0.0; 4]);
    });
}

#[test]
fn the_text_of_a_call_that_waits_for_an_earlier_one_names_it() {
    Job::new(2, 1).with("timeout_ms", 500).run(|store, rank| {
        while store.init(KEY, &[1.0f32; 4]).is_err() {}
        store.barrier(LIMIT).unwrap();
        if rank == 0 {
            store.push(KEY, &[1.0f32; 4]).unwrap();
            let pull = store.pull_owned(KEY, vec![0.0f32; 4], 0).unwrap();
            let text = failure(store.remove(&[KEY.into()]), Timeout);
            let earlier = "waiting for an earlier call of this worker, pull: key 7, round 1, of ";
            assert!(text.starts_with("remove: key 7: ") && text.contains(earlier), "{text}");
            assert!(text.ends_with(" ms ago; the key is kept"), "{text}");
            store.barrier(LIMIT).unwrap();
            assert_eq!(pull.wait(LIMIT).unwrap(), [2.0; 4]);
        } else {
            store.barrier(LIMIT).unwrap();
            store.push(KEY, &[1.0f32; 4]).unwrap();
        }
    });
}
