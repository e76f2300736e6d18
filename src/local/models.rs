//! Models of the tickets: loom runs each with every order of its threads.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib loom`. A lost wake-up shows as a deadlock, a
//! loan that ends too early as a data race on the toy's buffer.

use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering;
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::ticket::{OperationLabel, ReadyOperation, TicketWork, Tickets};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result, fail};

/// The value of the one key, under its lock as in a store, and the order of its accesses.
type Log = Arc<Mutex<Vec<u32>>>;

/// Memory that is lent to an operation until it has ended.
struct Loan(UnsafeCell<u32>);

// SAFETY: that two threads never use it at once is what the models check.
#[allow(unsafe_code, reason = "loom checks each access")]
unsafe impl Sync for Loan {}

impl Loan {
    fn new() -> Arc<Self> {
        Arc::new(Self(UnsafeCell::new(0)))
    }

    #[allow(unsafe_code, reason = "loom checks each access")]
    fn touch(&self) {
        // SAFETY: loom ends the model if another access is not ordered with this one.
        self.0.with_mut(|value| unsafe { *value += 1 });
    }
}

/// An operation that records its name, and uses its loan.
struct Toy {
    name: u32,
    keys: &'static [u64],
    log: Log,
    loan: Option<Arc<Loan>>,
}

const KEY: u64 = 7;
const ONE: &[u64] = &[KEY];
const OTHER: &[u64] = &[8];
const BOTH: &[u64] = &[KEY, 8];

impl TicketWork for Toy {
    fn keys(&self, visit: &mut dyn FnMut(u64)) {
        self.keys.iter().for_each(|&key| visit(key));
    }

    fn label(&self) -> OperationLabel {
        OperationLabel { call: "push", first_key: self.keys[0], keys: self.keys.len() }
    }
}

type Toys = Arc<Tickets<Toy>>;

fn tickets() -> (Toys, Log) {
    let name = Box::new(|key: u64| format!("key {key}"));
    (Arc::new(Tickets::new(1, 1, name)), Arc::new(Mutex::new(Vec::new())))
}

fn toy(name: u32, keys: &'static [u64], log: &Log) -> Toy {
    Toy { name, keys, log: Arc::clone(log), loan: None }
}

fn submit(tickets: &Toys, name: u32, log: &Log) -> u64 {
    tickets.submit(0, toy(name, ONE, log)).unwrap().0
}

fn note(log: &Log, name: u32) {
    log.lock().unwrap().push(name);
}

fn noted(log: &Log) -> Vec<u32> {
    log.lock().unwrap().clone()
}

/// Acts as a pool thread for a store with so many threads.
fn run_as_one_of(threads: usize, tickets: &Toys) {
    while let Some(ReadyOperation { sequence, work, cancel }) = tickets.take(threads) {
        let result = if cancel.load(Ordering::SeqCst) {
            Err(fail!(Cancelled, "cancelled"))
        } else {
            note(&work.log, work.name);
            if let Some(loan) = &work.loan {
                loan.touch();
            }
            Ok(())
        };
        drop(work);
        tickets.finish(sequence, result);
    }
}

fn run(tickets: &Toys) {
    run_as_one_of(1, tickets);
}

fn runner(tickets: &Toys) -> thread::JoinHandle<()> {
    let tickets = Arc::clone(tickets);
    thread::spawn(move || run(&tickets))
}

/// A call without a ticket: it waits for its turn on the key.
fn call(tickets: &Toys, name: u32, log: &Log) -> Result<()> {
    let label = OperationLabel { call: "pull", first_key: KEY, keys: 1 };
    let turn = tickets.enter(label, |visit| visit(KEY), Deadline::Never);
    let turn = turn.map_err(|left| left.error)?;
    note(log, name);
    if tickets.leave(turn) > 0 {
        run(tickets);
    }
    Ok(())
}

fn kind_of(result: &Result<()>) -> Option<ErrorKind> {
    result.as_ref().err().map(Error::kind)
}

/// Explores a model; up to three preemptions unless `LOOM_MAX_PREEMPTIONS` says otherwise.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

#[test]
fn loom_a_waiter_is_woken_when_its_operation_ends() {
    explore(|| {
        let (tickets, log) = tickets();
        let ticket = submit(&tickets, 1, &log);
        let runner = runner(&tickets);
        tickets.wait(ticket, Deadline::Never).unwrap();
        assert_eq!(noted(&log), [1]);
        runner.join().unwrap();
        assert_eq!(tickets.counts(), (0, 0));
    });
}

#[test]
fn loom_two_waiters_of_one_operation_are_both_woken() {
    explore(|| {
        let (tickets, log) = tickets();
        let ticket = submit(&tickets, 1, &log);
        let runner = runner(&tickets);
        let other = Arc::clone(&tickets);
        let waiter = thread::spawn(move || other.wait(ticket, Deadline::Never).unwrap());
        tickets.wait(ticket, Deadline::Never).unwrap();
        waiter.join().unwrap();
        runner.join().unwrap();
    });
}

#[test]
fn loom_operations_of_two_threads_on_one_key_run_once_each_in_their_order() {
    explore(|| {
        let (tickets, log) = tickets();
        let (others, notes) = (Arc::clone(&tickets), Arc::clone(&log));
        let other = thread::spawn(move || {
            let first = submit(&others, 10, &notes);
            let second = submit(&others, 11, &notes);
            run(&others);
            (first, second)
        });
        let ticket = submit(&tickets, 1, &log);
        run(&tickets);
        let (first, second) = other.join().unwrap();
        for ticket in [ticket, first, second] {
            tickets.wait(ticket, Deadline::Never).unwrap();
        }
        let mut order = vec![(ticket, 1), (first, 10), (second, 11)];
        order.sort_unstable();
        let order: Vec<u32> = order.into_iter().map(|(_, name)| name).collect();
        assert_eq!(noted(&log), order, "in the order of their tickets");
    });
}

#[test]
fn loom_a_cancel_ends_the_loan() {
    explore(|| {
        let (tickets, log) = tickets();
        let loan = Loan::new();
        let toy = Toy { loan: Some(Arc::clone(&loan)), ..toy(1, ONE, &log) };
        let (ticket, ready) = tickets.submit(0, toy).unwrap();
        assert!(ready);
        let runner = runner(&tickets);
        tickets.cancel(ticket, Deadline::Never).unwrap();
        loan.touch();
        let result = tickets.wait(ticket, Deadline::Never);
        match kind_of(&result) {
            None => assert_eq!(noted(&log), [1]),
            Some(kind) => {
                assert_eq!(kind, ErrorKind::Cancelled);
                assert!(noted(&log).is_empty());
            }
        }
        runner.join().unwrap();
        tickets.wait_all(Deadline::Never).unwrap();
    });
}

#[test]
fn loom_a_wait_ends_the_loan() {
    explore(|| {
        let (tickets, log) = tickets();
        let loan = Loan::new();
        let toy = Toy { loan: Some(Arc::clone(&loan)), ..toy(1, ONE, &log) };
        let (ticket, _) = tickets.submit(0, toy).unwrap();
        let runner = runner(&tickets);
        tickets.wait(ticket, Deadline::Never).unwrap();
        loan.touch();
        runner.join().unwrap();
    });
}

#[test]
fn loom_a_withdrawn_operation_does_not_let_the_next_overtake_the_one_before() {
    explore(|| {
        let (tickets, log) = tickets();
        let all = [1, 2, 3].map(|name| submit(&tickets, name, &log));
        let others = Arc::clone(&tickets);
        let runner = thread::spawn(move || run_as_one_of(2, &others));
        tickets.cancel(all[1], Deadline::Never).unwrap();
        run_as_one_of(2, &tickets);
        tickets.wait(all[2], Deadline::Never).unwrap();
        let order = noted(&log);
        let withdrawn = kind_of(&tickets.wait(all[1], Deadline::Never)).is_some();
        assert_eq!(order, if withdrawn { vec![1, 3] } else { vec![1, 2, 3] });
        runner.join().unwrap();
        assert_eq!(tickets.counts(), (0, 0));
    });
}

#[test]
fn loom_a_cancelled_operation_keeps_no_other_key_waiting() {
    explore(|| {
        let (tickets, log) = tickets();
        let held = tickets.submit(0, toy(1, OTHER, &log)).unwrap().0;
        let job = tickets.take(2).unwrap();
        let both = tickets.submit(0, toy(2, BOTH, &log)).unwrap().0;
        let behind = submit(&tickets, 3, &log);
        let others = Arc::clone(&tickets);
        let canceller = thread::spawn(move || {
            if others.cancel(both, Deadline::Never).unwrap() > 0 {
                run_as_one_of(2, &others);
            }
        });
        // The first operation is running all the time.
        tickets.wait(behind, Deadline::Never).unwrap();
        assert_eq!(noted(&log), [3]);
        tickets.finish(job.sequence, Ok(()));
        tickets.wait(held, Deadline::Never).unwrap();
        canceller.join().unwrap();
        assert_eq!(tickets.counts(), (0, 0));
    });
}

#[test]
fn loom_a_call_that_timed_out_keeps_no_other_key_waiting() {
    explore(|| {
        let (tickets, log) = tickets();
        let held = tickets.submit(0, toy(1, OTHER, &log)).unwrap().0;
        let job = tickets.take(2).unwrap();
        let others = Arc::clone(&tickets);
        let caller = thread::spawn(move || {
            let label = OperationLabel { call: "push", first_key: KEY, keys: 2 };
            let keys = |visit: &mut dyn FnMut(u64)| BOTH.iter().for_each(|&key| visit(key));
            let left = others.enter(label, keys, Deadline::after(Duration::ZERO)).err().unwrap();
            assert_eq!(left.error.kind(), ErrorKind::Timeout);
            if left.ready > 0 {
                run_as_one_of(2, &others);
            }
        });
        let (behind, ready) = tickets.submit(0, toy(3, ONE, &log)).unwrap();
        if ready {
            run_as_one_of(2, &tickets);
        }
        tickets.wait(behind, Deadline::Never).unwrap();
        // The first operation is running until the call has timed out.
        caller.join().unwrap();
        tickets.finish(job.sequence, Ok(()));
        tickets.wait(held, Deadline::Never).unwrap();
        assert_eq!((noted(&log), tickets.counts()), (vec![3], (0, 0)));
    });
}

#[test]
fn loom_an_abort_wakes_who_waits() {
    explore(|| {
        let (tickets, log) = tickets();
        let all = [1, 2].map(|name| submit(&tickets, name, &log));
        let runner = runner(&tickets);
        let others = Arc::clone(&tickets);
        let aborter = thread::spawn(move || others.abort(&fail!(Closed, "aborted")));
        let results = all.map(|ticket| kind_of(&tickets.wait(ticket, Deadline::Never)));
        let done = noted(&log);
        for (name, result) in (1..).zip(results) {
            assert!(matches!(result, None | Some(ErrorKind::Closed)));
            assert_eq!(result.is_none(), done.contains(&name));
        }
        aborter.join().unwrap();
        runner.join().unwrap();
        assert!(tickets.wait_idle(Deadline::Never));
        let late = toy(3, ONE, &log);
        assert_eq!(tickets.submit(0, late).unwrap_err().kind(), ErrorKind::Closed);
    });
}

#[test]
fn loom_an_abort_wakes_a_call_that_waits_for_its_turn() {
    explore(|| {
        let (tickets, log) = tickets();
        let ticket = submit(&tickets, 1, &log);
        // It is running, and does not end by itself.
        let job = tickets.take(1).unwrap();
        let (others, notes) = (Arc::clone(&tickets), Arc::clone(&log));
        let caller = thread::spawn(move || call(&others, 2, &notes));
        tickets.abort(&fail!(Closed, "aborted"));
        let result = caller.join().unwrap();
        // It may precede the abort only if it did not overlap the running operation.
        assert_eq!(kind_of(&result), Some(ErrorKind::Closed));
        assert!(job.cancel.load(Ordering::SeqCst));
        tickets.finish(job.sequence, Err(fail!(Cancelled, "stopped")));
        let result = tickets.wait(ticket, Deadline::Never);
        assert_eq!(kind_of(&result), Some(ErrorKind::Closed));
    });
}

#[test]
fn loom_a_call_takes_its_turn_behind_queued_work_of_its_thread() {
    explore(|| {
        let (tickets, log) = tickets();
        submit(&tickets, 1, &log);
        let runner = runner(&tickets);
        call(&tickets, 2, &log).unwrap();
        assert_eq!(noted(&log), [1, 2]);
        runner.join().unwrap();
        assert_eq!(tickets.counts(), (0, 0));
    });
}

#[test]
fn loom_work_queued_behind_a_turn_runs_when_the_turn_ends() {
    explore(|| {
        let (tickets, log) = tickets();
        submit(&tickets, 1, &log);
        let (others, notes) = (Arc::clone(&tickets), Arc::clone(&log));
        let caller = thread::spawn(move || call(&others, 2, &notes));
        let last = submit(&tickets, 3, &log);
        run(&tickets);
        tickets.wait(last, Deadline::Never).unwrap();
        caller.join().unwrap().unwrap();
        let order = noted(&log);
        let place = |name: u32| order.iter().position(|&it| it == name);
        assert_eq!(order.len(), 3);
        assert!(place(1) < place(3), "the order of one thread: {order:?}");
        assert_eq!(tickets.counts(), (0, 0));
    });
}

#[test]
fn loom_two_calls_and_queued_work_all_come_to_their_turn() {
    explore(|| {
        let (tickets, log) = tickets();
        submit(&tickets, 1, &log);
        let callers = [2, 3].map(|name| {
            let (others, notes) = (Arc::clone(&tickets), Arc::clone(&log));
            thread::spawn(move || call(&others, name, &notes))
        });
        run(&tickets);
        for caller in callers {
            caller.join().unwrap().unwrap();
        }
        let mut order = noted(&log);
        assert_eq!(order[0], 1, "it was queued before the calls began");
        order.sort_unstable();
        assert_eq!(order, [1, 2, 3]);
        assert_eq!(tickets.counts(), (0, 0));
    });
}

#[test]
fn loom_a_close_finishes_what_was_accepted() {
    explore(|| {
        let (tickets, log) = tickets();
        submit(&tickets, 1, &log);
        let (others, notes) = (Arc::clone(&tickets), Arc::clone(&log));
        let other = thread::spawn(move || {
            let late = toy(2, ONE, &notes);
            let accepted = others.submit(0, late);
            run(&others);
            accepted.map(|_| ())
        });
        tickets.close(Deadline::Never, fail!(Closed, "closed")).unwrap();
        let done = noted(&log);
        let accepted = other.join().unwrap();
        assert_eq!(done.len(), if accepted.is_ok() { 2 } else { 1 });
        assert!(matches!(kind_of(&accepted), None | Some(ErrorKind::Closed)));
        assert_eq!(tickets.counts(), (0, 0));
    });
}
