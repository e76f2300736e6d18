//! A checkpoint that one worker writes by itself, after the loss of another one.

use std::path::Path;
use std::time::Duration;

use kvstore::ErrorKind::PeerLost;
use kvstore::Store;

use super::common::folder::Folder;
use super::job::{Job, both, failure};

const LIMIT: Duration = Duration::from_secs(60);

/// Elements of keys: one of one slice, and one of some.
const COUNTS: [usize; 2] = [7, 20_000];

fn push_all(store: &Store, rank: usize, round: usize) {
    for (key, count) in (0u64..).zip(COUNTS) {
        let value = |i: usize| ((i * 13 + rank * 7 + round * 3) as f32 * 0.11).cos();
        store.push(key, &(0..count).map(value).collect::<Vec<_>>()).unwrap();
    }
}

/// Trains for some rounds, and saves with all workers.
fn begin(stores: [&Store; 2], file: &Path) {
    both(stores, |store| {
        for (key, count) in (0u64..).zip(COUNTS) {
            store.init(key, &vec![0.5f32; count]).unwrap();
        }
        store.set_optimizer("sgd", "learning_rate=0.1,momentum=0.9").unwrap();
    });
    for round in 0..3 {
        push_all(stores[0], 0, round);
        push_all(stores[1], 1, round);
    }
    both(stores, |store| store.save(file).unwrap());
}

#[test]
fn whoever_is_left_saves_the_rounds_that_have_closed() {
    for kind in ["dist_sync", "dist_async"] {
        let folder = Folder::new(&format!("alone-{kind}"));
        let (together, alone) = (folder.file("before-a-loss"), folder.file("after-a-loss"));
        let job = Job::of(kind, 2, 2).with("slice_bytes", 8192);
        let (others, [first, second]) = job.start_with_two();
        begin([&first, &second], &together);
        if kind == "dist_sync" {
            // A round that never closes.
            push_all(&first, 0, 3);
        }
        drop(second);
        while first.barrier(LIMIT).map_err(|error| error.kind()) != Err(PeerLost) {}
        first.save(&alone).unwrap();
        assert!(std::fs::read(&alone).unwrap() == std::fs::read(&together).unwrap(), "{kind}");
        failure(first.load(&alone), PeerLost);
        first.close(LIMIT).unwrap();
        drop(others.end());
    }
}
