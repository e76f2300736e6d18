//! Models of the pool: loom runs each with every order of its threads.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib loom`. A lost wake-up shows as a deadlock; a
//! helper that uses what a split has lent, or the split itself, after its end shows as a data race.

use std::sync::{Arc, Weak};

use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};
use loom::thread::{self, JoinHandle};

use super::Task;
use super::crew::ThreadCrew;

/// Memory that one piece of a split uses, and its owner before and after.
struct Cell(UnsafeCell<u32>);

// SAFETY: that two threads never use it at once is what the models check.
unsafe impl Sync for Cell {}

impl Cell {
    fn add(&self) {
        // SAFETY: loom ends the model if another access is not ordered with this one.
        self.0.with_mut(|value| unsafe { *value += 1 });
    }

    fn get(&self) -> u32 {
        // SAFETY: loom ends the model if another access is not ordered with this one.
        self.0.with(|value| unsafe { *value })
    }
}

fn cells<const N: usize>() -> [Cell; N] {
    std::array::from_fn(|_| Cell(UnsafeCell::new(0)))
}

/// A barrier: no thread leaves before so many have arrived.
struct Meeting {
    missing: Mutex<usize>,
    all: Condvar,
}

impl Meeting {
    fn of(guests: usize) -> Self {
        Self { missing: Mutex::new(guests), all: Condvar::new() }
    }

    fn attend(&self) {
        let mut missing = self.missing.lock().unwrap();
        *missing -= 1;
        self.all.notify_all();
        while *missing > 0 {
            missing = self.all.wait(missing).unwrap();
        }
    }

    fn is_over(&self) -> bool {
        *self.missing.lock().unwrap() == 0
    }
}

/// A crew whose helpers exit after so many tasks, which wait for each other.
struct Model {
    crew: ThreadCrew,
    tasks: Meeting,
}

impl Task for Model {
    fn run(self: Arc<Self>) {
        self.tasks.attend();
    }
}

impl Model {
    fn new(processors: usize, tasks: usize) -> Arc<Self> {
        Arc::new(Self { crew: ThreadCrew::new(processors), tasks: Meeting::of(tasks) })
    }

    fn helper(self: &Arc<Self>) -> JoinHandle<()> {
        let model = Arc::clone(self);
        model.crew.start_looking();
        thread::spawn(move || {
            let mut spins = true;
            while !model.tasks.is_over() {
                spins = model.crew.serve(0, spins);
            }
            // A real helper never exits, so other threads rely on it.
            model.crew.stop_looking();
        })
    }

    /// Splits once, and uses the memory of the pieces when it has returned.
    fn split<const PIECES: usize>(&self) {
        let cells = cells::<PIECES>();
        assert!(self.crew.split(1, PIECES as u32, &|piece| cells[piece].add()));
        for cell in cells {
            cell.add();
            assert_eq!(cell.get(), 2, "each piece ran once");
        }
    }

    /// Queues one of the tasks.
    fn push(self: &Arc<Self>) {
        let task: Weak<Self> = Arc::downgrade(self);
        self.crew.push(task);
    }
}

/// Explores a model; up to two preemptions unless `LOOM_MAX_PREEMPTIONS` says otherwise.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.check(model);
}

#[test]
fn loom_a_split_lends_its_memory_until_it_returns() {
    explore(|| {
        let model = Model::new(2, 1);
        let helper = model.helper();
        model.split::<2>();
        model.split::<2>();
        model.push();
        helper.join().unwrap();
    });
}

#[test]
fn loom_a_split_sleeps_until_its_helper_has_left() {
    explore(|| {
        let model = Model::new(1, 1);
        let helper = model.helper();
        model.split::<2>();
        model.push();
        helper.join().unwrap();
    });
}

#[test]
fn loom_a_helper_comes_to_a_split() {
    explore(|| {
        let model = Model::new(1, 1);
        let helper = model.helper();
        let pieces = Meeting::of(2);
        assert!(model.crew.split(1, 2, &|_| pieces.attend()), "each piece waits for the other");
        model.push();
        helper.join().unwrap();
    });
}

#[test]
fn loom_two_splits_share_a_helper() {
    explore(|| {
        let model = Model::new(1, 1);
        let helper = model.helper();
        let other = Arc::clone(&model);
        let owner = thread::spawn(move || other.split::<2>());
        model.split::<2>();
        owner.join().unwrap();
        model.push();
        helper.join().unwrap();
    });
}

#[test]
fn loom_a_task_is_found_beside_a_split() {
    explore(|| {
        let model = Model::new(2, 1);
        let helper = model.helper();
        let other = Arc::clone(&model);
        let owner = thread::spawn(move || other.split::<2>());
        model.push();
        helper.join().unwrap();
        owner.join().unwrap();
    });
}

#[test]
fn loom_tasks_that_wait_for_each_other_find_two_helpers() {
    explore(|| {
        let model = Model::new(2, 2);
        let helpers = [model.helper(), model.helper()];
        model.push();
        model.push();
        for helper in helpers {
            helper.join().unwrap();
        }
    });
}
