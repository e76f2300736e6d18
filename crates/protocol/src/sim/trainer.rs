//! Program of a worker that trains: forward, backward, and the exchange of gradients for weights.

use std::collections::HashMap;
use std::rc::Rc;

use super::Length;
use super::bandwidth::Nanos;
use crate::job::Time;
use crate::message::KeySpec;
use crate::worker::{OpId, Worker, WorkerAction};

const DEADLINE: Time = Time::MAX / 4;
const F32: u32 = 2 | 32 << 8 | 1 << 16;

/// A layer, as a worker has it.
pub(super) struct Stage {
    /// Each key and its bytes.
    pub(super) keys: Vec<(u64, u64)>,
    pub(super) priority: i32,
    pub(super) forward: Nanos,
    pub(super) backward: Nanos,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    New,
    /// The keys are being initialised; a barrier follows.
    Init,
    Meeting,
    /// The next step: the layers forward, then back.
    Before(usize),
    /// The step in computation, and its end.
    In(usize, Nanos),
}

pub(super) struct Trainer {
    stages: Rc<Vec<Stage>>,
    iterations: usize,
    phase: Phase,
    /// Layer of each open operation.
    open: HashMap<OpId, usize>,
    /// By layer, the keys with weights that have not arrived.
    missing: Vec<usize>,
    /// End of each iteration.
    ends: Vec<Nanos>,
}

impl Trainer {
    pub(super) fn new(stages: Rc<Vec<Stage>>, iterations: usize) -> Self {
        let missing = vec![0; stages.len()];
        let (open, ends) = (HashMap::new(), Vec::new());
        Self { stages, iterations, phase: Phase::New, open, missing, ends }
    }

    pub(super) fn ends(&self) -> &[Nanos] {
        &self.ends
    }

    /// Next time at which the trainer acts without an event.
    pub(super) fn next(&self, now: Nanos) -> Nanos {
        match self.phase {
            Phase::In(_, until) if until > now => until,
            _ => Nanos::MAX,
        }
    }

    /// Continues until it blocks.
    pub(super) fn act(&mut self, worker: &mut Worker<Length>, now: Nanos) {
        loop {
            for action in worker.actions() {
                if let WorkerAction::Finished { op, result, .. } = action {
                    result.unwrap_or_else(|failure| panic!("{failure}"));
                    let layer = self.open.remove(&op);
                    layer.into_iter().for_each(|layer| self.missing[layer] -= 1);
                }
            }
            if !self.step(worker, now) {
                return;
            }
        }
    }

    fn step(&mut self, worker: &mut Worker<Length>, now: Nanos) -> bool {
        let layers = self.stages.len();
        match self.phase {
            Phase::New => {
                self.init(worker, now);
                self.phase = Phase::Init;
            }
            Phase::Init if self.open.is_empty() => {
                let id = worker.barrier(now / 1_000, DEADLINE).unwrap();
                self.open.insert(id, 0);
                self.missing[0] += 1;
                self.phase = Phase::Meeting;
            }
            Phase::Meeting if self.open.is_empty() => self.phase = Phase::Before(0),
            Phase::Before(step) if step == 2 * layers => {
                self.ends.push(now);
                self.phase = Phase::Before(0);
            }
            Phase::Before(_) if self.ends.len() == self.iterations => return false,
            Phase::Before(step) if step < layers => {
                if self.missing[step] > 0 {
                    return false;
                }
                self.phase = Phase::In(step, now + self.stages[step].forward);
            }
            Phase::Before(step) => {
                let stage = &self.stages[2 * layers - 1 - step];
                self.phase = Phase::In(step, now + stage.backward);
            }
            Phase::In(step, until) if until <= now => {
                if step >= layers {
                    self.exchange(2 * layers - 1 - step, worker, now);
                }
                self.phase = Phase::Before(step + 1);
            }
            Phase::Init | Phase::Meeting | Phase::In(..) => return false,
        }
        true
    }

    fn init(&mut self, worker: &mut Worker<Length>, now: Nanos) {
        for (layer, stage) in self.stages.iter().enumerate() {
            for (key, bytes) in &stage.keys {
                let spec = KeySpec { dtype: F32, shape: vec![bytes / 4], whole: false };
                let id = worker.init(*key, spec, Length(*bytes), now / 1_000, DEADLINE).unwrap();
                self.open.insert(id, layer);
                self.missing[layer] += 1;
            }
        }
    }

    /// Pushes the gradients of a layer, and pulls its new weights.
    fn exchange(&mut self, layer: usize, worker: &mut Worker<Length>, now: Nanos) {
        let Stage { keys, priority, .. } = &self.stages[layer];
        for (key, bytes) in keys {
            let (now, data) = (now / 1_000, Length(*bytes));
            let id = worker.pushpull(*key, data, *priority, now, DEADLINE).unwrap();
            self.open.insert(id, layer);
            self.missing[layer] += 1;
        }
    }
}
