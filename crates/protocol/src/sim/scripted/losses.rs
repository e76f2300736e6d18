//! Lost members.

use super::{Job, SCHEDULER};
use crate::drops::DropReason;
use crate::job::{Failure, Limits, MS, OnLoss, Peer, Reason, Role};
use crate::machine::Machine as _;
use crate::message::{Message, MessageKind, failed};
use crate::sim::limits;

#[test]
fn a_lost_connection_is_news_at_once() {
    let limits = limits();
    let mut job = Job::started(&limits);
    job.init_all(2, 7, 8);
    let pull = {
        job.push(0, 7, 8).unwrap();
        job.pull(0, 7)
    };
    assert_eq!(job.result(0, pull), None);
    let barrier = {
        let now = job.now;
        job.worker(0).barrier(now, now + 10_000 * MS).unwrap()
    };
    job.nodes.remove("worker-1");
    // The drivers of several processes may report a broken connection.
    let now = job.now;
    job.nodes.get_mut("server-0").unwrap().down("worker-1", now);
    job.scheduler.down("worker-1", now);
    let text = job.text(0, pull);
    assert_eq!(text, "pull: key 7, round 1: the round cannot close: worker 1 at worker-1 is lost");
    assert_eq!(job.text(0, barrier), "barrier 1: worker 1 at worker-1 is lost");
    let refused = job.push(0, 7, 8).unwrap_err();
    assert_eq!(refused.to_string(), "push: key 7: worker 1 at worker-1 is lost");
}

#[test]
fn a_loss_that_a_server_knows_of_counts_before_the_scheduler_says_so() {
    let limits = limits();
    let mut job = Job::started(&limits);
    job.init_all(2, 7, 8);
    job.push(0, 7, 8).unwrap();
    let pull = job.pull(0, 7);
    let failure = Failure::new(Reason::PeerLost, "worker 1 at worker-1 is lost");
    let mut message = Message::of_key(MessageKind::Failed, 7, 1, failed::encode(&failure));
    message.head.request = pull;
    assert_eq!(job.worker(0).message(Peer::server(0), message), Ok(()));
    let refused = job.push(0, 7, 8).unwrap_err();
    assert_eq!(refused.to_string(), "push: key 7: worker 1 at worker-1 is lost");
}

/// The server drops pushes and offers, and the worker that pulls does not know of the loss.
#[test]
fn a_pull_behind_a_push_that_was_offered_is_told_of_the_loss() {
    let limits = limits();
    let mut job = Job::started(&limits);
    job.init_all(2, 7, 8);
    for _ in 0..3 {
        job.push(0, 7, 8).unwrap();
    }
    job.cuts.insert((SCHEDULER.into(), "worker-0".into()));
    job.nodes.remove("worker-1");
    let now = job.now;
    job.nodes.get_mut("server-0").unwrap().down("worker-1", now);
    job.scheduler.down("worker-1", now);
    job.settle();
    let pull = job.pull(0, 7);
    let text = job.text(0, pull);
    assert_eq!(text, "pull: key 7, round 3: the round cannot close: worker 1 at worker-1 is lost");
}

#[test]
fn a_search_for_a_key_whose_init_cannot_end_is_told_of_the_loss() {
    let limits = Limits { workers: 3, ..limits() };
    let mut job = Job::started(&limits);
    let init = job.init(1, 9, 8);
    let before = job.pull(2, 9);
    assert_eq!(job.result(2, before), None);
    job.nodes.remove("worker-0");
    let now = job.now;
    job.nodes.get_mut("server-0").unwrap().down("worker-0", now);
    job.scheduler.down("worker-0", now);
    assert_eq!(job.text(1, init), "init: key 9: worker 0 at worker-0 is lost");
    let after = job.pull(2, 9);
    for pull in [before, after] {
        let text = "pull: key 9: its init cannot end: worker 0 at worker-0 is lost";
        assert_eq!(job.text(2, pull), text);
    }
}

#[test]
fn the_job_goes_on_without_a_lost_worker_when_it_shall() {
    let limits = Limits { on_loss: OnLoss::Continue, ..limits() };
    let mut job = Job::started(&limits);
    job.init_all(2, 7, 8);
    job.push(0, 7, 8).unwrap();
    let pull = job.pull(0, 7);
    job.nodes.remove("worker-1");
    job.pass(limits.peer_timeout * 5 / 4);
    assert_eq!(job.result(0, pull), Some(&Ok(())));
}

/// The grace period of a lost connection begins only later.
#[test]
fn the_word_of_a_launcher_is_a_loss_at_once_and_the_errors_repeat_it() {
    let limits = limits();
    let mut job = Job::started(&limits);
    job.init_all(2, 7, 8);
    job.push(0, 7, 8).unwrap();
    let pull = job.pull(0, 7);
    job.nodes.remove("worker-1");
    job.exit_notice("worker-1", "ended by signal 9, said kvstore run");
    let lost = "worker 1 at worker-1 is lost: ended by signal 9, said kvstore run";
    assert_eq!(job.text(0, pull), format!("pull: key 7, round 1: the round cannot close: {lost}"));
    assert_eq!(job.push(0, 7, 8).unwrap_err().to_string(), format!("push: key 7: {lost}"));
}

#[test]
fn a_word_on_no_process_of_the_job_has_no_effect() {
    let limits = limits();
    let mut job = Job::started(&limits);
    let before = job.scheduler.standing(Peer::server(9));
    job.exit_notice("worker-2", "ended by signal 9");
    job.exit_notice("", "ended by signal 9");
    job.exit_notice("worker-1", "ended by\nsignal 9");
    job.exit_notice("worker-1", &"9".repeat(129));
    assert_eq!(job.scheduler.standing(Peer::server(9)), before);
    let ignored = job.scheduler.ignored();
    let words = ignored.iter().filter(|count| count.kind == MessageKind::ExitNotice);
    let reasons: Vec<_> = words.map(|count| (count.reason, count.count)).collect();
    let invalid = ["it names no process", "its text is no short line"].map(DropReason::Invalid);
    let expected = [(invalid[0], 1), (invalid[1], 2), (DropReason::Outdated, 1)];
    assert_eq!(reasons, expected);
    job.exit_notice("worker-1", "ended by signal 9");
    assert_ne!(job.scheduler.standing(Peer::server(9)), before);
}

/// A member that is declared lost and lives learns what was said of it.
#[test]
fn a_process_whose_end_was_announced_and_that_lives_is_evicted() {
    let mut job = Job::started(&limits());
    job.exit_notice("worker-1", "ended with status 7, said kvstore run");
    let end = job.end_of("worker-1");
    assert_eq!(end.reason, Reason::Evicted);
    let text =
        "worker 1 at worker-1 ended with status 7, said kvstore run, and the job declared it lost";
    assert_eq!(end.to_string(), text);
}

#[test]
fn a_process_that_is_started_again_is_not_meant_by_the_word_on_the_one_before() {
    let limits = limits();
    let mut job = Job::new(&limits);
    job.join(&limits, Role::Worker, 1);
    job.nodes.remove("worker-1");
    job.exit_notice("worker-1", "ended by signal 9");
    job.join_at("again", &limits, Role::Worker, 1);
    job.exit_notice("worker-1", "ended by signal 9");
    job.join(&limits, Role::Worker, 0);
    job.join(&limits, Role::Server, 0);
    assert!(job.nodes.len() == 3 && job.nodes.values().all(|node| node.has_started()));
    job.exit_notice("again", "ended by signal 11");
    let text = job.push(0, 7, 8).unwrap_err().to_string();
    assert!(text.ends_with("worker 1 at again is lost: ended by signal 11"), "{text}");
}
