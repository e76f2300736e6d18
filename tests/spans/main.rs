//! What a program with a subscriber of its own sees of its calls and of its job.
#![allow(clippy::unwrap_used, reason = "a failed test")]
#![allow(clippy::cast_precision_loss, reason = "small numbers")]

mod collector;
#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "the tests of jobs use all of it")]
#[path = "../dist/job.rs"]
mod job;
#[path = "../dist/other_build.rs"]
mod other_build;

use std::time::Duration;

use collector::Listener;
use common::folder::Folder;
use job::Job;
use kvstore::{Config, Key, Store};

const CALL: &str = "kvstore::call";
const SERVER: &str = "kvstore::server";
const JOB: &str = "kvstore::job";
const LIMIT: Duration = Duration::from_secs(60);

fn local() -> Store {
    Store::open("local", &Config::new()).unwrap()
}

#[test]
fn a_call_is_a_span_with_its_key_and_bytes_inside_of_the_programs_own() {
    let listener = Listener::start();
    let store = local();
    let key = store.intern("fc1.weight").unwrap();
    store.init(key, &[0.0f32; 4]).unwrap();
    tracing::info_span!("step").in_scope(|| store.push(key, &[1.0f32; 4]).unwrap());
    let other = Key::from(7u64);
    store.init(other, &[0.0f64; 2]).unwrap();
    store
        .pull_list(&[other, other], &mut [(&mut [0.0f64; 2]).into(), (&mut [0.0f64; 2]).into()])
        .unwrap();
    store.push(8u64, &[1.0f32]).unwrap_err();
    let first = &listener.all(CALL, "init")[0];
    assert_eq!((first.number("key"), first.field("name")), (key.id(), "fc1.weight"));
    assert_eq!((first.number("bytes"), first.number("keys"), first.parent), (16, 1, None));
    let pushes = listener.all(CALL, "push");
    assert_eq!((pushes.len(), pushes[0].parent), (2, Some("step")));
    assert_eq!((pushes[1].number("key"), pushes[1].field("name")), (8, ""));
    let pull = listener.one(CALL, "pull");
    assert_eq!((pull.number("key"), pull.number("keys"), pull.number("bytes")), (7, 2, 32));
    listener.check_closed();
}

#[test]
fn an_operation_with_a_ticket_goes_on_in_the_span_of_its_call() {
    let listener = Listener::start();
    let store = local();
    store.init(1u64, &[0.0f32; 4]).unwrap();
    let updater = |_, _: &kvstore::Tensor<'_>, _: &mut kvstore::TensorMut<'_>| {
        tracing::info!("updates");
        Ok(())
    };
    store.set_updater(updater).unwrap();
    let pending =
        tracing::info_span!("step").in_scope(|| store.push_owned(1u64, vec![1.0f32; 4], 0));
    pending.unwrap().wait(LIMIT).unwrap();
    let push = listener.one(CALL, "push");
    assert_eq!((push.parent, push.open), (Some("step"), false), "it ends before who waits is told");
    assert_eq!(listener.one("spans", "updates").parent, Some("push"));
    assert_eq!(listener.one(CALL, "wait").number("ticket"), push.number("ticket"));
    // What is never run ends as well.
    drop(store.push_owned(1u64, vec![1.0f32; 4], 0).unwrap());
    drop(store);
    listener.check_closed();
}

#[test]
fn a_checkpoint_is_a_span_with_its_file() {
    let listener = Listener::start();
    let (store, folder) = (local(), Folder::new("spans"));
    let path = folder.path().join("all.safetensors");
    store.init(1u64, &[0.0f32; 4]).unwrap();
    store.save(&path).unwrap();
    store.load(&path).unwrap();
    for name in ["save", "load"] {
        assert_eq!(listener.one(CALL, name).field("path"), path.display().to_string());
    }
    listener.check_closed();
}

/// Two workers push three rounds of a key of two slices, and of a small one.
#[test]
fn a_job_is_seen_from_both_sides() {
    const LARGE: usize = 4_096;
    let listener = Listener::start();
    Job::new(2, 1).with("slice_bytes", 8192).run(|store, rank| {
        store
            .init_list(
                &[1u64.into(), 2u64.into()],
                &[(&[0.0f32; LARGE]).into(), (&[0.0f32]).into()],
            )
            .unwrap();
        store.barrier(LIMIT).unwrap();
        for _ in 0..3 {
            store.push(1u64, &[rank as f32; LARGE]).unwrap();
        }
        let keys = [Key::from(1u64), Key::from(2u64)];
        let mut outs = (vec![0.0f32; LARGE], [0.0f32]);
        store.push_owned(2u64, vec![1.0f32], 0).unwrap().wait(LIMIT).unwrap();
        store.pull_list(&keys, &mut [(&mut outs.0).into(), (&mut outs.1).into()]).unwrap();
        assert_eq!((outs.0[0], outs.1), (1.0, [2.0]));
    });
    let rounds = |name: &str, key: u64| -> Vec<u64> {
        let all = listener.all(CALL, name);
        let of_key =
            all.iter().filter(|it| it.number("key") == key && !it.field("round").is_empty());
        of_key.map(|it| it.number("round")).collect()
    };
    let mut pushed = rounds("push", 1);
    pushed.sort_unstable();
    assert_eq!((pushed, rounds("push", 2)), (vec![1, 1, 2, 2, 3, 3], vec![1, 1]));
    // A call of several keys has an event for each.
    let ended = listener.all(CALL, "ended");
    let pulled = ended.iter().filter(|it| it.parent == Some("pull"));
    let mut pulled: Vec<_> = pulled.map(|it| (it.number("key"), it.number("round"))).collect();
    pulled.sort_unstable();
    assert_eq!(pulled, [(1, 3), (1, 3), (2, 1), (2, 1)]);
    assert!(ended.iter().all(|it| it.field("ok") == "true" && it.parent.is_some()), "{ended:?}");
    assert_eq!(listener.all(CALL, "barrier").len(), 2);
    let work = |name: &str| -> Vec<_> {
        let all = listener.all(SERVER, name);
        assert!(all.iter().all(|it| it.parent.is_none()), "{all:?}");
        let number = |it: &collector::Seen, field| it.number(field);
        let mut all: Vec<_> =
            all.iter().map(|it| ["key", "slice", "round"].map(|field| number(it, field))).collect();
        all.sort_unstable();
        all
    };
    let slices = [[1, 0, 1], [1, 0, 2], [1, 0, 3], [1, 1, 1], [1, 1, 2], [1, 1, 3], [2, 0, 1]];
    assert_eq!(work("update"), slices);
    assert_eq!(work("sum"), slices.iter().flat_map(|it| [*it, *it]).collect::<Vec<_>>());
    // Each way is seen from both of its sides.
    let mut ways: Vec<_> = listener
        .all(JOB, "connected")
        .iter()
        .map(|it| format!("{} - {}", it.field("me"), it.field("peer")))
        .filter(|way| !way.contains("scheduler"))
        .collect();
    ways.sort_unstable();
    let known = [
        "server 0 - worker 0",
        "server 0 - worker 1",
        "worker 0 - server 0",
        "worker 1 - server 0",
    ];
    assert_eq!(ways, known);
    let of_scheduler = |it: &&collector::Seen| it.field("me") == "the scheduler";
    assert!(listener.all(JOB, "connected").iter().filter(of_scheduler).count() >= 3);
    assert!(listener.all(JOB, "epoch").iter().any(|it| it.field("me") == "worker 0"));
    listener.check_closed();
}

#[test]
fn what_fails_or_is_given_up_leaves_no_span_open() {
    let listener = Listener::start();
    Job::new(1, 1).run(|store, _| {
        store.init(1u64, &[0.0f32; 4]).unwrap();
        store.push(9u64, &[1.0f32]).unwrap_err();
        drop(store.pull_owned(1u64, vec![0.0f32; 4], 0).unwrap());
        let lost = store.push_owned(1u64, vec![1.0f32; 4], 0).unwrap();
        store.abort();
        let _ = lost.wait(LIMIT);
    });
    listener.check_closed();
}
