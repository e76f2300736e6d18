//! Sums over workers: closed forms, and the order of ranks to the last bit.

use super::job::Job;
use kvstore::Tensor;

#[test]
fn what_all_ranks_push_is_summed() {
    for (workers, servers) in [(1, 1), (2, 1), (3, 2)] {
        let results = Job::new(workers, servers).run(move |store, rank| {
            store.init(3u64, &[1.0f32; 6]).unwrap();
            let mut out = [0.0f32; 6];
            store.pull(3u64, &mut out).unwrap();
            assert_eq!(out, [1.0; 6]);
            let mut seen = Vec::new();
            for _ in 0..5 {
                store.push(3u64, &[rank as f32 + 1.0; 6]).unwrap();
                store.pull(3u64, &mut out).unwrap();
                seen.push(out[5]);
            }
            store.barrier(std::time::Duration::from_secs(20)).unwrap();
            seen
        });
        let sum = (workers * (workers + 1) / 2) as f32;
        assert!(results.iter().all(|seen| seen == &[sum; 5]), "{workers}: {results:?}");
    }
}

#[test]
fn the_rule_runs_on_the_servers() {
    let (workers, rounds) = (3usize, 7usize);
    let results = Job::new(workers, 2).with("slice_bytes", 8192).run(move |store, rank| {
        let count = 12_345;
        store.init(1u64, &vec![1.0f32; count]).unwrap();
        store.set_optimizer("test", "rescale_grad=2").unwrap();
        let value = vec![rank as f32 + 1.0; count];
        let mut out = vec![0.0f32; count];
        for _ in 0..rounds {
            store.push(1u64, &value).unwrap();
        }
        store.pull(1u64, &mut out).unwrap();
        assert!(out.iter().all(|value| *value == out[0]));
        out[0]
    });
    let expected = (1 + 2 * rounds * workers * (workers + 1) / 2) as f32;
    assert_eq!(results, vec![expected; workers]);
}

/// Values whose sum depends on the order.
fn value(rank: usize, round: usize, element: usize) -> f32 {
    let mixed = (rank * 7919 + round * 104_729 + element * 31) as u32;
    let mixed = mixed.wrapping_mul(2_654_435_761) >> 8;
    (mixed as f32 - 8_388_608.0) * 10f32.powi((mixed % 13) as i32 - 6)
}

#[test]
fn sums_have_the_order_of_ranks_whatever_the_servers_and_slices() {
    let (workers, rounds, count) = (4, 6, 10_000);
    let expected: Vec<u32> = (0..count)
        .map(|element| {
            let mut stored = 0.0f32;
            for round in 0..rounds {
                let sum = (1..workers)
                    .fold(value(0, round, element), |sum, rank| sum + value(rank, round, element));
                stored += sum;
            }
            stored.to_bits()
        })
        .collect();
    for (servers, slice) in [(1, 8192), (2, 8192), (3, 40_000), (2, 1 << 20)] {
        let job = Job::new(workers, servers).with("slice_bytes", slice);
        let results = job.run(move |store, rank| {
            store.init(9u64, &vec![0.0f32; count]).unwrap();
            store.set_optimizer("test", "").unwrap();
            let mut out = vec![0.0f32; count];
            for round in 0..rounds {
                let values: Vec<f32> = (0..count).map(|e| value(rank, round, e)).collect();
                let key = [9u64.into()];
                let mut outs = [(&mut out[..]).into()];
                store.pushpull_list(&key, &[Tensor::from(&values[..])], &key, &mut outs).unwrap();
            }
            out
        });
        for out in results {
            let bits: Vec<u32> = out.iter().map(|value| value.to_bits()).collect();
            assert!(bits == expected, "{servers} servers, slices of {slice}");
        }
    }
}
