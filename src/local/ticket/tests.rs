//! Random operations beside a plain model: an operation waits for the living operations before it
//! that share one of its keys, and for nothing else.
#![allow(clippy::unwrap_used, reason = "a failed test")]

use std::time::Duration;

use super::{NoTurn, OperationLabel, ReadyOperation, TicketWork, Tickets, Turn};
use crate::deadline::Deadline;
use crate::error::{ErrorKind, fail};
use crate::search;
use kvstore_protocol::testing::Random;

const KEYS: u64 = 12;
const RUNNERS: usize = 3;
/// Operations that are pending at a time, at most.
const CROWD: usize = 24;

/// Keys are the bits of a number.
struct Toy(u32);

fn each_key(keys: u32, visit: &mut dyn FnMut(u64)) {
    (0..u32::BITS).filter(|key| keys >> key & 1 == 1).for_each(|key| visit(u64::from(key)));
}

fn label(keys: u32) -> OperationLabel {
    let first_key = u64::from(keys.trailing_zeros());
    OperationLabel { call: "push", first_key, keys: keys.count_ones() as usize }
}

impl TicketWork for Toy {
    fn keys(&self, visit: &mut dyn FnMut(u64)) {
        each_key(self.0, visit);
    }

    fn label(&self) -> OperationLabel {
        label(self.0)
    }
}

/// One to four keys.
fn any_keys(random: &mut Random) -> u32 {
    (0..=random.below(4)).fold(0, |keys, _| keys | 1 << random.below(KEYS))
}

enum What {
    Queued {
        ticket: u64,
        priority: i32,
    },
    Running {
        ticket: u64,
        job: ReadyOperation<Toy>,
    },
    /// At work on a device; its keys are free.
    #[cfg(feature = "cuda")]
    HandedOver {
        ticket: u64,
        sequence: u64,
    },
    Turn(Turn),
}

/// An operation of the model. Live ones are in order of arrival.
struct Living {
    keys: u32,
    what: What,
}

struct Trial {
    tickets: Tickets<Toy>,
    living: Vec<Living>,
    random: Random,
    /// Number of ends of each kind: time-outs, cancels, results.
    ends: [usize; 3],
    /// Number of operations that devices have ended.
    handed_over: usize,
}

impl Trial {
    fn new(seed: u64) -> Self {
        let tickets = Tickets::new(1, 1, Box::new(|key| format!("key {key}")));
        Self {
            tickets,
            living: Vec::new(),
            random: Random::new(seed),
            ends: [0; 3],
            handed_over: 0,
        }
    }

    /// Whether no living operation among the first `place` shares a key.
    fn is_free(&self, place: usize, keys: u32) -> bool {
        self.living[..place].iter().all(|before| before.keys & keys == 0)
    }

    fn submit(&mut self) {
        let (keys, priority) =
            (any_keys(&mut self.random), i32::try_from(self.random.below(3)).unwrap());
        let (ticket, ready) = self.tickets.submit(priority, Toy(keys)).unwrap();
        assert_eq!(ready, self.is_free(self.living.len(), keys));
        self.living.push(Living { keys, what: What::Queued { ticket, priority } });
    }

    /// A call without a ticket and without patience.
    fn call(&mut self) {
        let keys = any_keys(&mut self.random);
        let visit = |visit: &mut dyn FnMut(u64)| each_key(keys, visit);
        let now = Deadline::after(Duration::ZERO);
        match self.tickets.enter(label(keys), visit, now) {
            Ok(turn) => {
                assert!(self.is_free(self.living.len(), keys), "a call has overtaken");
                // Without operations on its keys a call takes no place in their queues.
                if turn.0.is_some() {
                    self.living.push(Living { keys, what: What::Turn(turn) });
                }
            }
            Err(NoTurn { error, ready }) => {
                assert!(!self.is_free(self.living.len(), keys), "waits for the dead: {error}");
                assert_eq!(error.kind(), ErrorKind::Timeout);
                assert!(ready >= self.count_ready(), "what waited for it must run");
                self.ends[0] += 1;
            }
        }
    }

    /// The places of what may run now, most urgent first.
    fn ready(&self) -> Vec<usize> {
        let urgency = |place: usize| match self.living[place].what {
            What::Queued { priority, .. } if self.is_free(place, self.living[place].keys) => {
                Some((std::cmp::Reverse(priority), place))
            }
            _ => None,
        };
        let mut ready: Vec<_> = (0..self.living.len()).filter_map(urgency).collect();
        ready.sort_unstable();
        ready.into_iter().map(|(_, place)| place).collect()
    }

    fn count_ready(&self) -> usize {
        self.ready().len()
    }

    fn take(&mut self) {
        let running = |it: &&Living| matches!(it.what, What::Running { .. });
        let room = self.living.iter().filter(running).count() < RUNNERS;
        let expected = self.ready().first().copied().filter(|_| room);
        let job = self.tickets.take(RUNNERS);
        assert_eq!(job.is_some(), expected.is_some());
        let (Some(job), Some(place)) = (job, expected) else { return };
        let living = &mut self.living[place];
        let What::Queued { ticket, .. } = living.what else { panic!("it was queued") };
        assert_eq!((ticket & 0xFFFF_FFFF, job.work.0), (job.sequence, living.keys));
        living.what = What::Running { ticket, job };
    }

    /// Ends something: a running operation or turn finishes, a queued one is cancelled.
    fn end(&mut self) {
        if self.living.is_empty() {
            return;
        }
        let place = self.random.index(self.living.len());
        match self.living.remove(place).what {
            What::Turn(turn) => {
                self.tickets.leave(turn);
            }
            What::Queued { ticket, .. } => {
                self.tickets.cancel(ticket, Deadline::after(Duration::ZERO)).unwrap();
                self.expect(ticket, Some(ErrorKind::Cancelled));
                self.ends[1] += 1;
            }
            #[cfg(feature = "cuda")]
            What::Running { ticket, job } if self.random.one_in(3) => {
                let sequence = job.sequence;
                self.tickets.hand_over(sequence);
                self.expect(ticket, Some(ErrorKind::Timeout));
                let what = What::HandedOver { ticket, sequence };
                self.living.push(Living { keys: 0, what });
            }
            #[cfg(feature = "cuda")]
            What::HandedOver { ticket, sequence } => {
                assert!(!self.tickets.wait_idle(Deadline::after(Duration::ZERO)));
                self.tickets.finish_there(sequence, Ok(()));
                self.expect(ticket, None);
                self.handed_over += 1;
            }
            What::Running { ticket, job } => {
                let stops = self.random.one_in(4);
                let result = if stops { Err(fail!(Cancelled, "stopped")) } else { Ok(()) };
                self.tickets.finish(job.sequence, result);
                self.expect(ticket, stops.then_some(ErrorKind::Cancelled));
                self.ends[2] += 1;
            }
        }
    }

    fn expect(&self, ticket: u64, kind: Option<ErrorKind>) {
        let result = self.tickets.wait(ticket, Deadline::after(Duration::ZERO));
        assert_eq!(result.err().map(|error| error.kind()), kind);
    }

    fn step(&mut self) {
        match self.random.below(8) {
            0..3 if self.living.len() < CROWD => self.submit(),
            3..5 if self.living.len() < CROWD => self.call(),
            5 => self.take(),
            _ => self.end(),
        }
        assert_eq!(self.tickets.counts().0, self.living.len(), "only the living are pending");
    }
}

#[test]
fn a_call_waits_only_for_the_living_that_share_a_key() {
    let usual = if std::env::var("KV_TEST_SCALE").is_ok_and(|it| it == "small") { 2 } else { 100 };
    let operations = std::env::var("KV_TEST_OPERATIONS").ok().and_then(|it| it.parse().ok());
    let (mut ends, mut handed_over) = ([0; 3], 0);
    for seed in 0..operations.unwrap_or(usual * 1000) / 1000 {
        let mut trial = Trial::new(seed);
        (0..1000).for_each(|_| trial.step());
        ends.iter_mut().zip(trial.ends).for_each(|(sum, count)| *sum += count);
        handed_over += trial.handed_over;
    }
    assert!(ends.iter().all(|&count| count > 50), "too tame: {ends:?}");
    assert!(handed_over > 50 || cfg!(not(feature = "cuda")), "too tame: {handed_over}");
}

/// An operation on the keys below a number.
struct Long(u64);

impl TicketWork for Long {
    fn keys(&self, visit: &mut dyn FnMut(u64)) {
        (0..self.0).for_each(visit);
    }

    fn label(&self) -> OperationLabel {
        OperationLabel { call: "push", first_key: 0, keys: 0 }
    }
}

#[test]
fn an_operation_takes_its_places_and_leaves_them_in_a_step_for_each_key() {
    let steps = |keys: u64| {
        let tickets = Tickets::new(1, 1, Box::new(|key| format!("key {key}")));
        let all = [0; 3].map(|priority| tickets.submit(priority, Long(keys)).unwrap().0);
        let first = tickets.take(RUNNERS).unwrap().sequence;
        let end = || {
            tickets.cancel(all[1], Deadline::Never).unwrap();
            tickets.finish(first, Ok(()));
            let last = tickets.take(RUNNERS).unwrap().sequence;
            tickets.finish(last, Ok(()));
            assert_eq!(tickets.counts().0, 0);
        };
        search::steps_of(end).0
    };
    assert_eq!(steps(4_000), 3 * 4_000);
    assert_eq!(steps(40_000), 3 * 40_000);
}
