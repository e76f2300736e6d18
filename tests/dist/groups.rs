//! Groups of workers against scalar loops: keys, rounds, rules, barriers, tickets, codecs, rows, files and collective
//! calls of their own, two at once; and what goes wrong in them.

use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use kvstore::ErrorKind::{
    Closed, Differs, InvalidArgument, KeyNotFound, Option, PeerLost, Role, Timeout, Unsupported,
};
use kvstore::{Key, Reduction, Store};

use super::common::folder::Folder;
use super::job::{Job, both, failure, join};

const LIMIT: Duration = Duration::from_secs(60);
const COUNT: usize = 20_000;

fn gradient(rank: usize, round: usize) -> Vec<f32> {
    (0..COUNT).map(|at| ((at + rank * 31 + round * 7) as f32 * 0.37).sin()).collect()
}

/// The sum from the left over some workers.
fn sum(ranks: &[usize], round: usize) -> Vec<f32> {
    let all: Vec<_> = ranks.iter().map(|rank| gradient(*rank, round)).collect();
    (0..COUNT).map(|at| all.iter().map(|values| values[at]).reduce(|a, b| a + b).unwrap()).collect()
}

fn pull(store: &Store, key: u64) -> Vec<f32> {
    let mut out = vec![0f32; COUNT];
    store.pull(key, &mut out).unwrap();
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|it| it.to_bits()).collect()
}

/// The groups of four workers in which a rank is.
fn groups_of(store: &Store, rank: usize) -> Vec<(Store, Vec<usize>)> {
    let all: [(&str, &[usize]); 3] =
        [("evens", &[0, 2]), ("tail", &[1, 2, 3]), ("all", &[0, 1, 2, 3])];
    let open = |(name, ranks): (&str, &[usize])| {
        // In any order.
        let given: Vec<u32> = ranks.iter().rev().map(|rank| *rank as u32).collect();
        ranks.contains(&rank).then(|| (store.group(name, &given).unwrap(), ranks.to_vec()))
    };
    all.into_iter().filter_map(open).collect()
}

/// One key in each group and in the job, each with rounds of its own.
#[test]
fn keys_of_the_same_name_are_others_in_each_group() {
    for (servers, ahead) in [(1, 1), (3, 4)] {
        let job = Job::new(4, servers).with("slice_bytes", 8_192).with("max_rounds_ahead", ahead);
        job.run(|store, rank| {
            let groups = groups_of(store, rank);
            store.init(7u64, &vec![0f32; COUNT]).unwrap();
            for (group, ranks) in &groups {
                let place = ranks.iter().position(|it| *it == rank).unwrap();
                assert_eq!(group.rank() as usize, place);
                assert_eq!(group.num_workers() as usize, ranks.len());
                group.init(7u64, &vec![rank as f32; COUNT]).unwrap();
                assert_eq!(pull(group, 7), vec![ranks[0] as f32; COUNT], "the first rank decides");
            }
            for round in 0..4 {
                for (salt, (group, ranks)) in groups.iter().enumerate().rev() {
                    group
                        .push(
                            7u64,
                            &gradient(rank, round + salt * 100 * usize::from(ranks.len() > 4)),
                        )
                        .unwrap();
                }
                store.push(7u64, &gradient(rank, round + 50)).unwrap();
                for (group, ranks) in &groups {
                    assert_eq!(bits(&pull(group, 7)), bits(&sum(ranks, round)), "{ranks:?}");
                }
                assert_eq!(bits(&pull(store, 7)), bits(&sum(&[0, 1, 2, 3], round + 50)));
            }
            for (group, _) in &groups {
                group.barrier(LIMIT).unwrap();
                group.close(LIMIT).unwrap();
                assert_eq!(group.pull(7u64, &mut [0f32; 1][..]).unwrap_err().kind(), Closed);
            }
            assert_eq!(bits(&pull(store, 7)), bits(&sum(&[0, 1, 2, 3], 53)));
        });
    }
}

/// A rule in one group, another one in the job, and none in the other group.
#[test]
fn each_group_has_its_own_rule() {
    Job::new(3, 2).run(|store, rank| {
        let pair = (rank < 2).then(|| store.group("pair", &[0, 1]).unwrap());
        let last = (rank > 0).then(|| store.group("last", &[1, 2]).unwrap());
        let all = [Some(store), pair.as_ref(), last.as_ref()];
        for each in all.into_iter().flatten() {
            each.init(1u64, &[10f32; 8]).unwrap();
        }
        store.set_optimizer("sgd", "learning_rate=0.5").unwrap();
        if let Some(pair) = &pair {
            pair.set_optimizer("test", "rescale_grad=1").unwrap();
        }
        let mut out = [0f32; 8];
        for each in all.into_iter().flatten() {
            each.push(1u64, &[1f32 + rank as f32; 8]).unwrap();
        }
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [10.0 - 0.5 * 6.0; 8]);
        if let Some(pair) = &pair {
            pair.pull(1u64, &mut out).unwrap();
            assert_eq!(out, [10.0 + 3.0; 8]);
            let text = failure(pair.set_hyperparameter("momentum", f64::NAN), Option);
            assert!(text.contains("set_hyperparameter"), "{text}");
        }
        if let Some(last) = &last {
            last.pull(1u64, &mut out).unwrap();
            assert_eq!(out, [5.0; 8]);
            last.remove(&[Key::from(1u64)]).unwrap();
            failure(last.pull(1u64, &mut out), KeyNotFound);
        }
        store.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [7.0; 8]);
    });
}

/// Tickets, lists, rows and a codec, in a group and in the job at once.
#[test]
fn tickets_rows_and_codecs_are_those_of_each_group() {
    let job = Job::new(3, 2).with("slice_bytes", 8_192);
    job.run(|store, rank| {
        let group = (rank != 1).then(|| store.group("ends", &[0, 2]).unwrap());
        let place = usize::from(rank == 2);
        for (each, of) in [(Some(store), 0), (group.as_ref(), 1)] {
            let Some(each) = each else { continue };
            let keys: Vec<u64> = (0..20).collect();
            let zeros: Vec<_> = keys.iter().map(|_| vec![0f32; 600]).collect();
            for (key, value) in keys.iter().zip(&zeros) {
                each.init(*key, value).unwrap();
            }
            let tickets: Vec<_> = keys
                .iter()
                .map(|key| each.push_owned(*key, vec![(rank + of) as f32; 600], 0).unwrap())
                .collect();
            tickets.into_iter().for_each(|ticket| _ = ticket.wait(LIMIT).unwrap());
            let expected = if of == 0 { 3.0 } else { 4.0 };
            for key in keys {
                let mut out = vec![0f32; 600];
                each.pull(key, &mut out).unwrap();
                assert_eq!(out, vec![expected; 600], "key {key}");
            }
        }
        if let Some(group) = &group {
            group.set_compression("2bit", "threshold=0.5").unwrap();
            group.init(30u64, &vec![0f32; 640]).unwrap();
            group.push(30u64, &vec![0.75f32; 640]).unwrap();
            let mut out = vec![0f32; 640];
            group.pull(30u64, &mut out).unwrap();
            assert_eq!(out, vec![1.0; 640]);
            assert_eq!(place, group.rank() as usize);
        }
    });
}

fn all_collectives(store: &Store, ranks: &[usize], rank: usize) {
    let me = ranks.iter().position(|it| *it == rank).unwrap();
    for (round, count) in [1, 64, 4_097, COUNT].into_iter().enumerate() {
        let mine = gradient(rank, round)[..count].to_vec();
        let mut out = vec![0f32; count];
        store.allreduce(Reduction::Sum, &[(&mine).into()], &mut [(&mut out).into()]).unwrap();
        assert_eq!(bits(&out), bits(&sum(ranks, round)[..count]), "{ranks:?}, {count}");
        let mut gathered = vec![vec![0f32; count]; ranks.len()];
        let mut outs: Vec<_> = gathered.iter_mut().map(Into::into).collect();
        store.allgather((&mine).into(), &mut outs).unwrap();
        for (of, values) in ranks.iter().zip(&gathered) {
            assert_eq!(*values, gradient(*of, round)[..count]);
        }
        for (root, of) in ranks.iter().enumerate() {
            let mut out = vec![0f32; count];
            let value = (me == root).then(|| (&mine).into());
            let outs = &mut [(&mut out).into()];
            store.broadcast_from(root as u32, value, outs).unwrap();
            if me != root {
                assert_eq!(out, gradient(*of, round)[..count]);
            }
            let mut out = vec![0f32; count];
            let outs = &mut [(&mut out).into()];
            store.reduce(Reduction::Max, root as u32, &[(&mine).into()], outs).unwrap();
        }
        let sent: Vec<Vec<f32>> = (0..ranks.len())
            .map(|to| gradient(rank * 10 + to, round)[..=count / 2].to_vec())
            .collect();
        let mut came = vec![vec![0f32; count / 2 + 1]; ranks.len()];
        let values: Vec<_> = sent.iter().map(Into::into).collect();
        let mut outs: Vec<_> = came.iter_mut().map(Into::into).collect();
        store.all_to_all(&values, &mut outs).unwrap();
        for (of, values) in ranks.iter().zip(&came) {
            assert_eq!(*values, gradient(of * 10 + me, round)[..=count / 2]);
        }
    }
}

/// Groups exchange before the job does, and both at once from two threads.
#[test]
fn collective_calls_of_groups_and_of_the_job() {
    Job::new(4, 1).run(|store, rank| {
        let groups = groups_of(store, rank);
        // A worker that is in one group begins with it, while others are in another one.
        for (group, ranks) in &groups {
            all_collectives(group, ranks, rank);
        }
        all_collectives(store, &[0, 1, 2, 3], rank);
        thread::scope(|scope| {
            for (group, ranks) in &groups {
                scope.spawn(move || {
                    for _ in 0..3 {
                        all_collectives(group, ranks, rank);
                    }
                });
            }
            all_collectives(store, &[0, 1, 2, 3], rank);
        });
        groups.iter().for_each(|(group, _)| group.close(LIMIT).unwrap());
        all_collectives(store, &[0, 1, 2, 3], rank);
    });
}

/// A worker that has ports for another group already, and comes late, is not taken for a lost one.
#[test]
fn a_worker_of_two_groups_may_be_late_in_one() {
    // Worker 3 opens no port, so the scheduler does not send the book by itself.
    let job = Job::new(4, 1).with("peer_timeout_ms", 4_000).with("start_timeout_ms", 8_000);
    job.run(|store, rank| {
        let first = (1..3).contains(&rank).then(|| store.group("first", &[1, 2]).unwrap());
        let second = (rank < 2).then(|| store.group("second", &[0, 1]).unwrap());
        if let Some(first) = &first {
            all_collectives(first, &[1, 2], rank);
        }
        store.barrier(LIMIT).unwrap();
        if let Some(second) = &second {
            thread::sleep(Duration::from_secs(if rank == 1 { 10 } else { 0 }));
            all_collectives(second, &[0, 1], rank);
        }
        store.barrier(LIMIT).unwrap();
    });
}

/// A group of one worker, and one whose name is in another process another group's.
#[test]
fn what_is_no_group_is_refused_and_changes_nothing() {
    let job = Job::new(2, 2).with("timeout_ms", 5_000);
    let (others, [first, second]) = job.start_with_two();
    let refused = |result: kvstore::Result<Store>, kind, text: &str| {
        let message = failure(result.map(drop), kind);
        assert!(message.contains(text), "{message}");
    };
    refused(first.group("", &[0]), InvalidArgument, "the name \"\"");
    refused(first.group("x", &[]), InvalidArgument, "rank 0, which is not in the list");
    refused(first.group("x", &[1]), InvalidArgument, "rank 0, which is not in the list");
    refused(first.group("x", &[0, 0]), InvalidArgument, "rank 0 is there twice");
    refused(first.group("x", &[0, 2]), InvalidArgument, "rank 2; the job has 2 workers");
    let alone = first.group("alone", &[0]).unwrap();
    alone.init(1u64, &[1f32; 4]).unwrap();
    alone.push(1u64, &[3f32; 4]).unwrap();
    let mut out = [0f32; 4];
    alone.pull(1u64, &mut out).unwrap();
    assert_eq!(out, [3.0; 4]);
    alone.barrier(LIMIT).unwrap();
    alone.allreduce(Reduction::Sum, &[(&out).into()], &mut []).unwrap();
    refused(first.group("alone", &[0]), InvalidArgument, "is open in this process");
    refused(alone.group("inner", &[0]), Unsupported, "make groups of the job's store");
    alone.done().unwrap();
    alone.resume(LIMIT).unwrap();
    alone.push(1u64, &[4f32; 4]).unwrap();
    alone.pull(1u64, &mut out).unwrap();
    assert_eq!(out, [4.0; 4]);
    let both_of = first.group("both", &[0, 1]).unwrap();
    let text = failure(second.group("both", &[1]).map(drop), Differs);
    assert_eq!(text, "group: worker 1 gives it worker 1; it has worker 0, worker 1");
    // Refused, it is made well.
    let other = second.group("both", &[1, 0]).unwrap();
    both([&both_of, &other], |store| store.init(1u64, &[0f32; 4]).unwrap());
    both([&both_of, &other], |store| store.push(1u64, &[1f32; 4]).unwrap());
    both_of.pull(1u64, &mut out).unwrap();
    assert_eq!(out, [2.0; 4]);
    // Its keys are of no other store.
    failure(first.pull(1u64, &mut out), KeyNotFound);
    drop(alone);
    let again = first.group("alone", &[0]).unwrap();
    failure(again.pull(1u64, &mut out), KeyNotFound);
    drop((again, both_of, other));
    both([&first, &second], |store| store.close(LIMIT).unwrap());
    others.end().into_iter().for_each(|end| end.unwrap());
}

/// Epochs of unequal batches in two groups that share a worker, and barriers between them: sums have all pushes.
#[test]
fn groups_resume_by_themselves() {
    let batches = |rank: usize, epoch: usize| [[1, 3], [2, 0], [3, 1]][rank][epoch];
    for (servers, ahead) in [(1, 1), (3, 4)] {
        let job = Job::new(3, servers).with("slice_bytes", 8_192).with("max_rounds_ahead", ahead);
        job.run(move |store, rank| {
            let all: [(&str, &[usize]); 2] = [("evens", &[0, 2]), ("tail", &[1, 2])];
            for (name, ranks) in all.into_iter().filter(|(_, ranks)| ranks.contains(&rank)) {
                let given: Vec<u32> = ranks.iter().map(|rank| *rank as u32).collect();
                let group = store.group(name, &given).unwrap();
                group.init(7u64, &vec![0f32; COUNT]).unwrap();
                group.set_optimizer("test", "rescale_grad=1").unwrap();
                let mut sum = 0;
                for epoch in 0..2 {
                    for _ in 0..batches(rank, epoch) {
                        group.push(7u64, &vec![(rank + 1) as f32; COUNT]).unwrap();
                    }
                    group.done().unwrap();
                    group.resume(LIMIT).unwrap();
                    sum += ranks.iter().map(|it| (it + 1) * batches(*it, epoch)).sum::<usize>();
                    assert!(pull(&group, 7).iter().all(|it| *it == sum as f32), "{name}: {sum}");
                    group.barrier(LIMIT).unwrap();
                }
                // All push again, and a new key begins.
                group.init(8u64, &vec![0f32; COUNT]).unwrap();
                for key in [7u64, 8] {
                    group.push(key, &vec![1f32; COUNT]).unwrap();
                }
                let [old, new] = [7, 8].map(|key| pull(&group, key)[0]);
                assert_eq!([old, new], [(sum + 2) as f32, 2.0], "{name}");
                assert_eq!(group.last_round(7u64).unwrap().contributors, 2);
            }
        });
    }
}

#[test]
fn the_resume_of_a_group_names_the_late_worker_and_goes_on_without_one_that_left() {
    let job = Job::new(3, 2).with("timeout_ms", 20_000);
    job.run(|store, rank| {
        let group = (rank > 0).then(|| store.group("tail", &[1, 2]).unwrap());
        let Some(group) = group else {
            store.barrier(LIMIT).unwrap();
            return;
        };
        group.init(1u64, &[0f32; 4]).unwrap();
        if rank == 1 {
            let text = failure(group.resume(Duration::from_millis(500)), Timeout);
            assert!(text.contains("waiting for worker 2"), "{text}");
            store.barrier(LIMIT).unwrap();
            group.resume(LIMIT).unwrap();
            group.push(1u64, &[5f32; 4]).unwrap();
            let mut out = [0f32; 4];
            group.pull(1u64, &mut out).unwrap();
            assert_eq!(out, [5.0; 4]);
        } else {
            store.barrier(LIMIT).unwrap();
            group.close(LIMIT).unwrap();
        }
    });
}

#[test]
fn a_late_worker_of_a_group_is_named_by_its_rank_in_the_job() {
    let job = Job::new(3, 1).with("timeout_ms", 700);
    let results = job.run(|store, rank| {
        let group = (rank > 0).then(|| store.group("tail", &[1, 2]).unwrap());
        let Some(group) = group else {
            store.barrier(LIMIT).unwrap();
            return String::new();
        };
        group.init(1u64, &[0f32; 4]).unwrap();
        let mut text = String::new();
        if rank == 1 {
            group.push(1u64, &[1f32; 4]).unwrap();
            text = failure(group.pull(1u64, &mut [0f32; 4]), Timeout);
            text += &failure(group.barrier(Duration::from_millis(500)), Timeout);
        }
        store.barrier(LIMIT).unwrap();
        if rank == 2 {
            group.push(1u64, &[1f32; 4]).unwrap();
            group.barrier(LIMIT).unwrap();
        } else {
            group.barrier(LIMIT).unwrap();
        }
        let mut out = [0f32; 4];
        group.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [2.0; 4]);
        text
    });
    let late = &results[1];
    assert_eq!(late.matches("waiting for worker 2").count(), 2, "{late}");
}

/// The abort of a worker ends the rounds of its groups, and of the job; the other group goes on.
#[test]
fn a_lost_worker_ends_its_groups_only() {
    let job = Job::new(3, 2);
    let others = job.start();
    let opened = job.open_all(&others.root).into_iter().map(Result::unwrap);
    let workers: Vec<Arc<Store>> = opened.map(Arc::new).collect();
    let ranks = |name: &'static str, ranks: [usize; 2]| {
        let of = |rank: usize| {
            let list: Vec<u32> = ranks.iter().map(|rank| *rank as u32).collect();
            workers[rank].group(name, &list).unwrap()
        };
        ranks.map(of)
    };
    let ([zero, two], [one, also_two]) = (ranks("evens", [0, 2]), ranks("tail", [1, 2]));
    both([&zero, &two], |store| store.init(1u64, &[0f32; 4]).unwrap());
    both([&one, &also_two], |store| store.init(1u64, &[0f32; 4]).unwrap());
    both([&one, &also_two], |store| {
        store.allreduce(Reduction::Sum, &[(&[1f32; 4]).into()], &mut []).unwrap();
    });
    workers[0].abort();
    let text =
        failure(two.push(1u64, &[1f32; 4]).and_then(|()| two.pull(1u64, &mut [0f32; 4])), PeerLost);
    assert!(text.contains("worker 0"), "{text}");
    failure(two.barrier(LIMIT), PeerLost);
    assert_eq!((two.num_lost(), also_two.num_lost(), workers[2].num_lost()), (1, 0, 1));
    for round in 1..4 {
        both([&one, &also_two], |store| store.push(1u64, &[round as f32; 4]).unwrap());
        let mut out = [0f32; 4];
        also_two.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [2.0 * round as f32; 4]);
    }
    both([&one, &also_two], |store| {
        store.barrier(LIMIT).unwrap();
        store.init(2u64, &[0f32; 4]).unwrap();
        store.set_optimizer("test", "rescale_grad=1").unwrap();
        let mut out = [1f32; 4];
        let value = [2f32; 4];
        store.allreduce(Reduction::Sum, &[(&value).into()], &mut [(&mut out).into()]).unwrap();
        assert_eq!(out, [4.0; 4]);
        store.close(LIMIT).unwrap();
    });
    drop((zero, two, one, also_two));
    for worker in &workers[1..] {
        let _ = worker.close(LIMIT);
    }
    drop(others.end());
}

/// A worker that closes its store of the group leaves it; one that drops it leaves it as well.
#[test]
fn the_others_go_on_without_a_worker_that_leaves_the_group() {
    let job = Job::new(3, 2);
    job.run(|store, rank| {
        let group = store.group("all", &[0, 1, 2]).unwrap();
        group.init(1u64, &[0f32; 4]).unwrap();
        group.push(1u64, &[1f32; 4]).unwrap();
        let mut out = [0f32; 4];
        group.pull(1u64, &mut out).unwrap();
        assert_eq!(out, [3.0; 4]);
        match rank {
            0 => group.close(LIMIT).unwrap(),
            1 => drop(group),
            _ => {
                group.push(1u64, &[5f32; 4]).unwrap();
                group.pull(1u64, &mut out).unwrap();
                assert_eq!(out, [5.0; 4]);
                group.barrier(LIMIT).unwrap();
            }
        }
        store.barrier(LIMIT).unwrap();
    });
}

/// A checkpoint of a group has its keys, rule and states alone, and is loaded into another group and a local store.
#[test]
fn a_group_saves_and_loads_its_own_keys() {
    let folder = Folder::new("group");
    let path = Arc::new(folder.file("group.safetensors"));
    let of_job = Arc::clone(&path);
    Job::new(3, 2).with("slice_bytes", 8_192).run(move |store, rank| {
        store.init(2u64, &[0f32; 4]).unwrap();
        let group = (rank < 2).then(|| store.group("pair", &[0, 1]).unwrap());
        if let Some(group) = &group {
            group.init(1u64, &vec![1f32; COUNT]).unwrap();
            group.set_optimizer("sgd", "learning_rate=0.5,momentum=0.9").unwrap();
            for round in 0..2 {
                group.push(1u64, &gradient(rank, round)).unwrap();
            }
            group.save(&*of_job).unwrap();
            group.push(1u64, &gradient(rank, 2)).unwrap();
        }
        store.barrier(LIMIT).unwrap();
        let second = (rank > 0).then(|| store.group("second", &[1, 2]).unwrap());
        let mut all = vec![0f32; COUNT];
        if let Some(second) = &second {
            second.load(&*of_job).unwrap();
            second.push(1u64, &gradient(rank - 1, 2)).unwrap();
            second.pull(1u64, &mut all).unwrap();
        }
        if let Some(group) = &group {
            let mut out = vec![0f32; COUNT];
            group.pull(1u64, &mut out).unwrap();
            if rank == 1 {
                assert_eq!(bits(&out), bits(&all), "the state came along");
            }
        }
        store.barrier(LIMIT).unwrap();
    });
    let local = Store::open("local", &kvstore::Config::new()).unwrap();
    local.load(Path::new(&*path)).unwrap();
    let mut out = vec![0f32; COUNT];
    local.pull(1u64, &mut out).unwrap();
    failure(local.pull(2u64, &mut [0f32; 4]), KeyNotFound);
}

#[test]
fn asynchronous_groups_merge_each_push_at_once() {
    Job::of("dist_async", 3, 1).run(|store, rank| {
        let group = (rank != 2).then(|| store.group("pair", &[0, 1]).unwrap());
        if let Some(group) = &group {
            group.init(1u64, &[0f32; 4]).unwrap();
            group.set_optimizer("test", "rescale_grad=1").unwrap();
            group.push(1u64, &[1f32; 4]).unwrap();
            group.barrier(LIMIT).unwrap();
            let mut out = [0f32; 4];
            group.pull(1u64, &mut out).unwrap();
            assert_eq!(out, [2.0; 4]);
        }
        store.barrier(LIMIT).unwrap();
    });
}

#[test]
fn a_reader_makes_no_group() {
    let (others, [worker, reader]) = Job::new(2, 1).start_with_reader();
    failure(reader.group("x", &[0, 1]).map(drop), Role);
    let alone = worker.group("alone", &[0]).unwrap();
    alone.init(1u64, &[1f32; 4]).unwrap();
    drop(alone);
    reader.close(LIMIT).unwrap();
    worker.close(LIMIT).unwrap();
    drop(others.end());
}

/// The end of the job's store ends those of its groups.
#[test]
fn the_end_of_the_job_ends_its_groups() {
    Job::new(2, 1).run(|store, rank| {
        let group = store.group("both", &[0, 1]).unwrap();
        group.init(1u64, &[0f32; 4]).unwrap();
        group.barrier(LIMIT).unwrap();
        store.close(LIMIT).unwrap();
        failure(group.push(1u64, &[1f32; 4]), Closed);
        if rank == 0 {
            assert!(group.close(LIMIT).is_ok());
        }
    });
}

/// A program may free the store of the job before those of its groups, which keep what both share.
#[test]
fn the_store_of_the_job_is_freed_at_once_before_its_groups() {
    let job = Job::new(2, 1).with("timeout_ms", 60_000);
    let others = job.start();
    let stores: Vec<Store> = job.open_all(&others.root).into_iter().map(Result::unwrap).collect();
    let in_group = Arc::new(Barrier::new(2));
    let workers = stores.into_iter().map(|store| {
        let in_group = Arc::clone(&in_group);
        thread::spawn(move || {
            let group = store.group("both", &[0, 1]).unwrap();
            group.init(1u64, &[0f32; 4]).unwrap();
            in_group.wait();
            let begun = Instant::now();
            drop(store);
            assert!(begun.elapsed() < LIMIT / 2, "{:?}", begun.elapsed());
            failure(group.push(1u64, &[1f32; 4]), Closed);
            drop(group);
            assert!(begun.elapsed() < LIMIT / 2, "{:?}", begun.elapsed());
        })
    });
    workers.collect::<Vec<_>>().into_iter().for_each(join);
    drop(others.end());
}
