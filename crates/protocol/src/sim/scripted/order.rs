//! Order of messages by urgency.

use super::Job;
use crate::job::{Limits, MS};
use crate::message::MessageKind;
use crate::sim::{Bytes, limits};
use crate::telemetry::ProcessStats;

#[test]
fn a_pull_overtakes_pushes_unless_values_are_to_wait() {
    for one_way_at_a_time in [false, true] {
        let limits = Limits { workers: 1, one_way_at_a_time, ..limits() };
        let mut job = Job::started(&limits);
        job.init_all(1, 7, 8);
        let (now, end) = (job.now, job.now + 10_000 * MS);
        let push = job.worker(0).push(7, Bytes::of(&[1.0; 8]), 0, now, end).unwrap();
        let pulls = [0, 1].map(|priority| job.worker(0).pull(7, priority, now, end).unwrap());
        let frames = job.nodes.get_mut("worker-0").unwrap().send(now).collect::<Vec<_>>();
        let sent = frames.iter().flat_map(|frame| frame.message.parts());
        let sent: Vec<_> = sent.map(|message| (message.head.kind, message.head.request)).collect();
        // Two slices of each.
        let pushed = [(MessageKind::Push, push); 2];
        let [pulled, urgent] = pulls.map(|op| [(MessageKind::Pull, op); 2]);
        let expected =
            if one_way_at_a_time { [urgent, pushed, pulled] } else { [pulled, urgent, pushed] };
        assert_eq!(sent, expected.concat());
    }
}

#[test]
fn whom_a_call_waits_for_is_asked_behind_its_values() {
    let limits = Limits { workers: 1, ..limits() };
    let mut job = Job::started(&limits);
    job.init_all(1, 7, 8);
    let now = job.now;
    job.worker(0).pushpull(7, Bytes::of(&[1.0; 8]), 0, now, now + 10_000 * MS).unwrap();
    // As often as an observer queries the job.
    job.worker(0).report(&mut ProcessStats::default());
    let frames = job.nodes.get_mut("worker-0").unwrap().send(now).collect::<Vec<_>>();
    let sent = frames.iter().flat_map(|frame| frame.message.parts());
    let sent: Vec<_> = sent.map(|message| message.head.kind).collect();
    // Two slices.
    assert_eq!(sent, [MessageKind::Push, MessageKind::Push, MessageKind::Ask]);
}

/// Two workers push two large keys in opposite order, one of them a round ahead: credit that is granted only
/// in turn must be granted at last.
#[test]
fn pushes_in_opposite_order_with_hardly_any_credit_go_through() {
    let limits = Limits { hold_bytes: 64, max_rounds_ahead: 2, ..limits() };
    let mut job = Job::started(&limits);
    job.init_all(2, 0, 400);
    job.init_all(2, 1, 400);
    let mut pushes = Vec::new();
    for (rank, key) in [(0, 0), (0, 0), (0, 1), (0, 1), (1, 1), (1, 1), (1, 0), (1, 0)] {
        pushes.push((rank, job.push(rank, key, 400).unwrap()));
    }
    for (rank, push) in pushes {
        assert_eq!(job.result(rank, push), Some(&Ok(())));
    }
    assert_eq!(job.closed, 2 * 2 * 100);
    assert!(job.most_held > 0 && job.most_held <= limits.hold_bytes, "{}", job.most_held);
}

#[test]
fn a_push_too_far_ahead_waits_for_the_round_before_it() {
    let limits = Limits { max_rounds_ahead: 1, ..limits() };
    let mut job = Job::started(&limits);
    job.init_all(2, 7, 4);
    let first = job.push(0, 7, 4).unwrap();
    let second = job.push(0, 7, 4).unwrap();
    assert_eq!(job.result(0, first), Some(&Ok(())));
    assert_eq!(job.result(0, second), None);
    job.push(1, 7, 4).unwrap();
    assert_eq!(job.result(0, second), Some(&Ok(())));
}
