//! Processes that join, or are refused.

use super::{Job, SCHEDULER};
use crate::job::{Limits, MS, OnLoss, Peer, Reason, Role, SumOrder};
use crate::machine::Machine as _;
use crate::membership::Scheduler;
use crate::message::{
    BadFrame, Book, Field as _, Header, Hello, Message, MessageKind, Terms, failed,
};
use crate::node::{Node, NodeStart};
use crate::server::Server;
use crate::sim::{Bytes, limits};
use crate::testing::AnyNode;
use crate::worker::Worker;

#[test]
fn a_process_that_expects_another_job_is_refused_at_once() {
    let limits = limits();
    let mut job = Job::new(&limits);
    job.join(&Limits { workers: 3, ..limits.clone() }, Role::Worker, 0);
    let failure = job.end_of("worker-0");
    assert_eq!(failure.reason, Reason::Refused);
    assert_eq!(
        failure.to_string(),
        "worker 0 at worker-0 expects 3 workers and 1 servers; the job has 2 and 1: start all \
         processes with the same num_workers and num_servers"
    );
    job.join(&limits, Role::Worker, 5);
    assert!(job.end_of("worker-5").to_string().contains("room for 2"));
}

#[test]
fn a_second_process_of_one_rank_is_refused_and_the_first_stays() {
    let limits = limits();
    let mut job = Job::new(&limits);
    job.join(&limits, Role::Worker, 1);
    job.join_at("elsewhere", &limits, Role::Worker, 1);
    let text = job.end_of("elsewhere").to_string();
    assert_eq!(
        text,
        "there is a worker 1 already, at worker-1; give every process a rank of its own"
    );
    assert!(job.nodes["worker-1"].end().is_none());
}

#[test]
fn another_version_of_the_protocol_is_refused_on_both_sides() {
    let limits = limits();
    let mut job = Job::new(&limits);
    job.scheduler.bad_frame("tcp/old:1", BadFrame::Version(7), job.now);
    let frames = job.scheduler.send(job.now).collect::<Vec<_>>();
    assert_eq!((&*frames[0].to, frames[0].message.head.kind), ("tcp/old:1", MessageKind::Refused));
    let birth = NodeStart { rank: None, incarnation: 1, address: "new", scheduler: "scheduler" };
    let mut node = Node::<_, Worker<Bytes>>::new(limits, &birth, 0);
    node.bad_frame("somebody", BadFrame::Version(7), 1);
    assert!(node.end().is_none(), "only the scheduler decides about the job");
    node.bad_frame("scheduler", BadFrame::Version(7), 1);
    let failure = node.end().unwrap().as_ref().unwrap_err();
    assert!(failure.to_string().contains("speaks version 7"), "{failure}");
}

#[test]
fn a_flood_of_strangers_is_refused_little_by_little_and_members_get_in() {
    let limits = limits();
    let mut job = Job::new(&limits);
    let flood = |job: &mut Job| {
        let strangers = (0..10_000).map(|number| format!("stranger-{number}"));
        strangers.for_each(|name| job.scheduler.bad_frame(&name, BadFrame::Version(7), job.now));
        job.scheduler.send(job.now).len()
    };
    assert!((100..300).contains(&flood(&mut job)));
    assert_eq!(flood(&mut job), 0);
    (0..limits.workers).for_each(|rank| job.join(&limits, Role::Worker, rank));
    (0..limits.servers).for_each(|rank| job.join(&limits, Role::Server, rank));
    assert!(job.nodes.values().all(|node| node.has_started()));
    // A repeated request is answered after an interval.
    job.join(&limits, Role::Worker, 5);
    assert!(job.nodes["worker-5"].end().is_none());
    job.pass(2_000 * MS);
    assert!(job.end_of("worker-5").to_string().contains("room for 2"));
    assert!((100..300).contains(&flood(&mut job)));
}

#[test]
fn who_does_not_come_is_named_when_the_time_to_start_is_over() {
    let limits = Limits { workers: 3, ..limits() };
    let mut job = Job::new(&limits);
    job.join(&limits, Role::Worker, 1);
    job.join(&limits, Role::Server, 0);
    job.pass(limits.start_timeout - 2);
    assert!(job.nodes.values().all(|node| node.end().is_none()));
    job.pass(1_000 * MS);
    let end = job.scheduler.end().unwrap().as_ref().unwrap_err();
    assert_eq!(
        end.to_string(),
        "the job did not start within 60000 ms: worker 0, worker 2 did not come"
    );
    for address in ["worker-1", "server-0"] {
        assert!(job.end_of(address).to_string().contains("worker 0, worker 2 did not come"));
    }
}

#[test]
fn a_scheduler_that_does_not_answer_is_named() {
    let limits = limits();
    let birth =
        NodeStart { rank: Some(0), incarnation: 1, address: "here", scheduler: "tcp/nobody:9" };
    let mut node = Node::<_, Server<Bytes>>::new(limits.clone(), &birth, 0);
    let mut hellos = 0;
    while node.end().is_none() {
        let now = node.wake_at();
        assert!(now <= limits.start_timeout);
        node.tick(now);
        hellos += node.send(now).len();
    }
    assert!(hellos > 50, "it goes on asking");
    let text = node.end().unwrap().as_ref().unwrap_err().to_string();
    assert!(text.contains("the scheduler at tcp/nobody:9 does not answer"), "{text}");
}

fn start_scheduler_again(job: &mut Job, limits: &Limits) {
    (job.scheduler, job.now) = (Scheduler::new(limits.clone(), 2 * job.now, job.now), job.now + 1);
    job.stopped.clear();
    job.waiting.clear();
}

/// One worker and two servers, one of which has not received the start; the scheduler has died.
fn job_without_scheduler(limits: &Limits, unaware: &str) -> Job {
    let mut job = Job::new(limits);
    job.join(limits, Role::Worker, 0);
    job.join(limits, Role::Server, 0);
    job.cuts.insert((SCHEDULER.into(), unaware.into()));
    job.join(limits, Role::Server, 1);
    assert!(job.nodes.iter().all(|(name, node)| node.has_started() == (&**name != unaware)));
    job.stopped.insert(SCHEDULER.into());
    job
}

/// Members detect the end of their connection to the scheduler.
fn miss_scheduler(job: &mut Job, members: &[&str]) {
    let now = job.now;
    members.iter().for_each(|member| job.nodes.get_mut(*member).unwrap().down(SCHEDULER, now));
}

/// Only the worker has received the start.
#[test]
fn a_member_whose_scheduler_dies_at_the_start_waits_for_the_next_one() {
    let limits = Limits { workers: 1, on_loss: OnLoss::Continue, ..limits() };
    let mut job = Job::new(&limits);
    job.join(&limits, Role::Server, 0);
    job.cuts.insert((SCHEDULER.into(), "server-0".into()));
    job.join(&limits, Role::Worker, 0);
    assert!(job.nodes["worker-0"].has_started() && !job.nodes["server-0"].has_started());
    job.stopped.insert(SCHEDULER.into());
    job.pass(2 * limits.peer_timeout);
    assert_eq!(job.nodes["worker-0"].end(), None);
    start_scheduler_again(&mut job, &limits);
    job.cuts.clear();
    job.pass(1_000 * MS);
    job.init_all(1, 7, 8);
}

/// Neither the worker with the terms nor one of the servers has received the start.
#[test]
fn a_scheduler_that_is_started_again_keeps_terms_that_it_was_told_before_it_knew_of_the_start() {
    let limits = Limits { workers: 1, servers: 2, on_loss: OnLoss::Continue, ..limits() };
    let mut job = Job::new(&limits);
    job.join(&limits, Role::Server, 0);
    job.join(&limits, Role::Worker, 0);
    for unaware in ["worker-0", "server-1"] {
        job.cuts.insert((SCHEDULER.into(), unaware.into()));
    }
    job.join(&limits, Role::Server, 1);
    let started = |job: &Job| job.nodes.values().filter(|node| node.has_started()).count();
    assert_eq!(started(&job), 1, "server 0");
    job.stopped.insert(SCHEDULER.into());
    job.pass(2 * limits.peer_timeout);
    start_scheduler_again(&mut job, &limits);
    job.cuts.clear();
    for late in ["server-0", "server-1"] {
        job.cuts.insert((late.into(), SCHEDULER.into()));
    }
    job.pass(1_000 * MS);
    job.cuts.clear();
    job.pass(1_000 * MS);
    assert_eq!(started(&job), 3);
    job.init_all(1, 7, 64);
}

/// A server reaches the next scheduler when the worker has missed it for the full timeout, and its book is
/// lost.
#[test]
fn a_member_that_learns_of_the_start_late_is_not_judged_before_it_was_heard_by_the_others() {
    let limits = Limits { workers: 1, servers: 2, on_loss: OnLoss::Continue, ..limits() };
    let mut job = job_without_scheduler(&limits, "server-0");
    job.pass(limits.peer_timeout / 2);
    start_scheduler_again(&mut job, &limits);
    miss_scheduler(&mut job, &["worker-0", "server-1"]);
    job.pass(limits.peer_timeout / 4 * 3);
    assert!(!job.nodes["server-0"].has_started());
    job.cuts.clear();
    job.pass(1_000 * MS);
    assert_eq!(job.nodes["worker-0"].end(), None);
    job.init_all(1, 7, 64);
}

/// Server 1 has not received the start, and leaves before the worker's leave can reach it.
#[test]
fn a_worker_that_leaves_waits_for_no_server_that_has_left() {
    let limits = Limits { workers: 1, servers: 2, on_loss: OnLoss::Continue, ..limits() };
    let mut job = job_without_scheduler(&limits, "server-1");
    let (now, deadline) = (job.now, job.now + 60_000 * MS);
    let close = job.worker(0).close(now, deadline).unwrap();
    job.pass(limits.peer_timeout / 2);
    start_scheduler_again(&mut job, &limits);
    job.cuts = [("worker-0".into(), SCHEDULER.into())].into();
    miss_scheduler(&mut job, &["server-0", "server-1"]);
    job.pass(1_000 * MS);
    assert!(job.nodes["server-0"].end().is_some() && job.nodes["server-1"].end().is_some());
    assert_eq!(job.result(0, close), None);
    job.cuts.clear();
    miss_scheduler(&mut job, &["worker-0"]);
    job.pass(1_000 * MS);
    assert_eq!(job.result(0, close), Some(&Ok(())));
}

#[test]
fn a_process_whose_rank_the_next_scheduler_has_given_away_gets_another_one() {
    let limits = limits();
    let mut job = Job::new(&limits);
    job.enter("first", &limits, Role::Worker, None, false);
    assert_eq!(job.nodes["first"].me(), Peer::worker(0));
    start_scheduler_again(&mut job, &limits);
    job.enter("second", &limits, Role::Worker, None, false);
    assert_eq!(job.nodes["second"].me(), Peer::worker(0));
    miss_scheduler(&mut job, &["first"]);
    job.pass(1_000 * MS);
    assert_eq!(job.nodes["first"].end(), None);
    assert_eq!(job.nodes["first"].me(), Peer::worker(1));
    job.join(&limits, Role::Server, 0);
    assert!(job.nodes.values().all(|node| node.has_started()));
}

#[test]
fn a_process_whose_own_rank_the_next_scheduler_has_given_away_is_refused() {
    let limits = limits();
    let mut job = Job::new(&limits);
    job.join(&limits, Role::Worker, 0);
    start_scheduler_again(&mut job, &limits);
    job.enter("second", &limits, Role::Worker, None, false);
    miss_scheduler(&mut job, &["worker-0"]);
    job.pass(1_000 * MS);
    assert!(job.end_of("worker-0").to_string().contains("there is a worker 0 already, at second"));
}

#[test]
fn a_process_that_leaves_before_the_start_starts_no_job_and_frees_its_place() {
    let limits = limits();
    let mut job = Job::new(&limits);
    job.join(&limits, Role::Server, 0);
    job.join(&limits, Role::Worker, 0);
    let worker = job.nodes.get_mut("worker-0").unwrap();
    worker.say(Peer::SCHEDULER, Message::new(MessageKind::Leave, Vec::new()));
    job.settle();
    job.nodes.remove("worker-0");
    assert!(!job.nodes.values().any(|node| node.has_started()));
    job.join(&limits, Role::Worker, 1);
    job.join_at("another", &limits, Role::Worker, 0);
    assert!(job.nodes.values().all(|node| node.has_started()));
}

/// The reader has received the start, and the worker has not.
#[test]
fn a_server_that_hears_a_reader_alone_waits_for_the_next_scheduler() {
    let limits = Limits { on_loss: OnLoss::Continue, ..limits() };
    let mut job = Job::new(&limits);
    job.join(&limits, Role::Worker, 0);
    job.enter("reader", &limits, Role::Worker, Some(1), true);
    job.cuts.insert((SCHEDULER.into(), "worker-0".into()));
    job.join(&limits, Role::Server, 0);
    assert!(job.nodes["server-0"].has_started() && !job.nodes["worker-0"].has_started());
    job.stopped.insert(SCHEDULER.into());
    job.pass(2 * limits.peer_timeout);
    assert_eq!(job.nodes["server-0"].end(), None);
    start_scheduler_again(&mut job, &limits);
    job.cuts.clear();
    job.pass(1_000 * MS);
    job.init_all(1, 7, 8);
}

/// The restarted scheduler receives the hello of server 1 only shortly before the timeout. So worker 0 learns
/// of the start as late, and the first book with that address is lost.
#[test]
fn a_pair_is_not_judged_before_the_scheduler_has_told_it_where_the_others_are() {
    let limits = Limits { workers: 1, servers: 2, on_loss: OnLoss::Continue, ..limits() };
    let mut job = job_without_scheduler(&limits, "worker-0");
    job.pass(limits.peer_timeout / 2);
    start_scheduler_again(&mut job, &limits);
    job.cuts = [("server-1".into(), SCHEDULER.into())].into();
    miss_scheduler(&mut job, &["worker-0", "server-0"]);
    job.pass(limits.silence() - 200 * MS);
    assert!(!job.nodes["worker-0"].has_started());
    job.cuts = [(SCHEDULER.into(), "worker-0".into())].into();
    job.pass(600 * MS);
    job.cuts.clear();
    job.pass(1_000 * MS);
    assert_eq!(job.nodes["worker-0"].end(), None);
    job.init_all(1, 7, 64);
}

/// A server of an earlier release, whose hello has no features, joins last.
#[test]
fn a_worker_that_adds_by_a_tree_refuses_members_of_earlier_releases() {
    for sum_order in [SumOrder::Linear, SumOrder::Tree] {
        let limits = Limits { sum_order, ..limits() };
        let mut job = Job::new(&limits);
        (0..2).for_each(|rank| job.join(&limits, Role::Worker, rank));
        let birth =
            NodeStart { rank: Some(0), incarnation: 99, address: "server-0", scheduler: SCHEDULER };
        let mut node = AnyNode::new(Role::Server, limits.clone(), &birth, job.now);
        node.tick(job.now);
        job.nodes.insert("server-0".into(), node);
        loop {
            let frames = job.frames();
            if frames.is_empty() {
                break;
            }
            for (from, mut frame) in frames {
                if &*from == "server-0" && frame.message.head.kind == MessageKind::Hello {
                    let hello = Hello::decode(frame.message.fields()).unwrap();
                    let changed = Message::from(Hello { features: 0, ..hello });
                    frame.message.body = changed.body;
                }
                job.deliver(frame);
            }
        }
        for worker in ["worker-0", "worker-1"] {
            let end = job.nodes[worker].end();
            if sum_order == SumOrder::Linear {
                assert!(end.is_none() && job.nodes[worker].has_started(), "{worker}: {end:?}");
                continue;
            }
            let failure = end.expect("it ends").as_ref().unwrap_err();
            assert_eq!(failure.reason, Reason::Refused);
            let text = failure.to_string();
            assert!(text.starts_with("server 0 at server-0 is of an earlier release"), "{text}");
        }
    }
}

/// A worker of a later release, with a term that the scheduler does not know.
#[test]
fn terms_of_a_later_release_are_compared_and_passed_on() {
    let limits = limits();
    let mut job = Job::new(&limits);
    let mut hello = |rank: u32, others: &[(&str, &str)]| {
        let others = others.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let terms = Some(Terms { known: limits.terms(), others: others.collect() });
        let (workers, servers) = (limits.workers, limits.servers);
        let address = format!("later-{rank}");
        let hello = Hello { workers, servers, address, terms, features: 5, ..Hello::default() };
        let mut message = Message::from(hello);
        let (role, job_name) = (Role::Worker, limits.job);
        message.head =
            Header { role, rank, job: job_name, incarnation: 9 + u64::from(rank), ..message.head };
        job.scheduler.receive(message, job.now);
        let frames = job.scheduler.send(job.now);
        frames.map(|frame| frame.message).next_back().expect("an answer")
    };
    let book = hello(0, &[("quorum", "3")]);
    let book = Book::decode(book.fields()).unwrap();
    let passed_on = book.terms.map(|terms| terms.others);
    assert_eq!(passed_on, Some(vec![("quorum".to_owned(), "3".to_owned())]));
    assert_eq!(book.members[0].features, 5);
    let refused = hello(1, &[("quorum", "2")]);
    assert_eq!(refused.head.kind, MessageKind::Refused);
    assert_eq!(
        failed::decode(refused.fields(), 0).unwrap().to_string(),
        "worker 1 at later-1 has 2 for quorum, the workers before it have 3; use the same type and \
         options in all workers"
    );
    // One that has a name of its own, and lacks the other, differs in nothing.
    assert_eq!(hello(1, &[("grace_ms", "9")]).head.kind, MessageKind::Book);
}

#[test]
fn a_scheduler_that_is_started_again_takes_the_word_of_a_launcher() {
    let limits = limits();
    let mut job = Job::started(&limits);
    start_scheduler_again(&mut job, &limits);
    miss_scheduler(&mut job, &["worker-0", "worker-1", "server-0"]);
    job.pass(1_000 * MS);
    job.exit_notice("worker-1", "ended by signal 9");
    let text = job.push(0, 7, 8).unwrap_err().to_string();
    assert!(text.ends_with("worker 1 at worker-1 is lost: ended by signal 9"), "{text}");
}

/// Round trips may take seconds, and packets may be lost.
#[test]
fn a_worker_is_ready_when_a_frame_of_each_server_has_arrived() {
    let limits = Limits { servers: 2, ..limits() };
    let mut job = Job::new(&limits);
    job.cuts.insert(("server-1".into(), "worker-0".into()));
    (0..2).for_each(|rank| job.join(&limits, Role::Worker, rank));
    (0..2).for_each(|rank| job.join(&limits, Role::Server, rank));
    let ready = |job: &Job| job.nodes.values().map(|node| node.is_ready()).collect::<Vec<_>>();
    assert!(job.nodes.values().all(|node| node.has_started()));
    // In the order of their names: servers, workers.
    assert_eq!(ready(&job), [true, true, false, true]);
    job.pass(limits.start_timeout - 1_000 * MS);
    assert_eq!(ready(&job), [true, true, false, true]);
    job.cuts.clear();
    job.pass(limits.peer_timeout / 8);
    assert_eq!(ready(&job), [true; 4]);
    job.init_all(2, 7, 64);
}

#[test]
fn a_server_that_is_not_reached_in_the_time_of_the_start_is_named() {
    let limits = Limits { servers: 2, ..limits() };
    let mut job = Job::new(&limits);
    job.cuts.insert(("server-1".into(), "worker-0".into()));
    (0..2).for_each(|rank| job.join(&limits, Role::Worker, rank));
    (0..2).for_each(|rank| job.join(&limits, Role::Server, rank));
    job.pass(limits.start_timeout - 10 * MS);
    assert_eq!(job.nodes["worker-0"].end(), None);
    job.pass(1_000 * MS);
    let end = job.end_of("worker-0");
    assert_eq!(end.reason, Reason::Timeout);
    assert_eq!(
        end.to_string(),
        "worker 0: server 1 at server-1 was not reached within 60000 ms: no frame of it has arrived"
    );
}
