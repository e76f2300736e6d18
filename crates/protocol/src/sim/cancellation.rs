//! Hasty calls: they expire by a short deadline or are cancelled, and are made again. Also calls for keys
//! that may not exist.

use std::collections::{BTreeMap, BTreeSet};

use super::Bytes;
use super::cluster::{Cluster, Program};
use super::program::Line;
use crate::job::{Failure, Peer, Reason, Time};
use crate::worker::{OpId, Worker};

/// Hasty calls of a program, and the times of their cancellation.
#[derive(Default)]
pub(super) struct Haste {
    lines: BTreeMap<OpId, Line>,
    cancels: BTreeMap<Time, OpId>,
    /// The next barrier is the one that expired or was cancelled.
    pub(super) same_barrier: bool,
    /// Removals by this program, by key.
    lives: BTreeMap<u64, u32>,
}

/// Removals and initialisations of all programs, by key and generation.
#[derive(Default)]
pub(super) struct Lives {
    initialised: BTreeSet<(u64, u32)>,
    removing: BTreeSet<(u64, u32, u32)>,
}

impl Haste {
    pub(super) fn add(&mut self, id: OpId, line: Line, cancel: Option<Time>) {
        self.lines.insert(id, line);
        if let Some(mut at) = cancel {
            while self.cancels.contains_key(&at) {
                at += 1;
            }
            self.cancels.insert(at, id);
        }
    }

    pub(super) fn next(&self) -> Option<Time> {
        self.cancels.first_key_value().map(|(at, _)| *at)
    }

    /// Whether a hasty call is open.
    pub(super) fn is_busy(&self) -> bool {
        !self.lines.is_empty()
    }

    fn life(&self, key: u64) -> u32 {
        self.lives.get(&key).copied().unwrap_or(0)
    }
}

impl Cluster {
    /// Cancels the calls that are due.
    pub(super) fn cancel(&mut self, worker: &mut Worker<Bytes>, program: &mut Program) {
        while let Some(first) = program.haste.cancels.first_entry()
            && *first.key() <= self.network.now
        {
            let id = first.remove();
            if program.open.remove(&id).is_some() {
                worker.abandon(id);
                self.met.cancelled += 1;
                Self::again(id, program);
            }
        }
    }

    /// Makes the calls again that have had no effect before they expired or were cancelled.
    fn again(id: OpId, program: &mut Program) {
        let Some(line) = program.haste.lines.remove(&id) else { return };
        let lines = program.lines.get_or_insert_default();
        match &line {
            // Pushes take effect even so.
            Line::Push(..) | Line::Pushpull(..) => return,
            Line::Set(_) => program.settings -= 1,
            Line::Barrier => program.haste.same_barrier = true,
            _ => {}
        }
        let key = if let Line::Remove(key) = &line { Some(*key) } else { None };
        lines.push_front(line);
        if let Some(key) = key {
            *program.haste.lives.entry(key).or_default() -= 1;
            lines.push_front(Line::Wait);
            lines.push_front(Line::Probe(key));
        }
    }

    /// Whether a call has ended as a hasty one may.
    pub(super) fn ends_in_haste(
        &mut self,
        id: OpId,
        result: &Result<(), Failure>,
        program: &mut Program,
    ) -> bool {
        if matches!(result, Err(failure) if failure.reason == Reason::Timeout)
            && program.haste.lines.contains_key(&id)
        {
            self.met.overdue += 1;
            Self::again(id, program);
            return true;
        }
        program.haste.lines.remove(&id);
        false
    }

    /// Records a call that changes or needs a generation of a key; gives whether the key exists for sure.
    pub(super) fn note_call(&mut self, line: &Line, program: &mut Program, me: Peer) -> bool {
        match line {
            Line::Remove(key) => {
                let life = program.haste.life(*key);
                self.lives.removing.insert((*key, life, me.rank));
                program.haste.lives.insert(*key, life + 1);
                false
            }
            Line::Ask(key, _) => self.lives.initialised.contains(&(*key, program.haste.life(*key))),
            _ => false,
        }
    }

    /// Records the success of a call that changes a generation of a key.
    pub(super) fn note_success(&mut self, line: &Line, program: &Program) {
        if let Line::Init(key, ..) = line {
            self.lives.initialised.insert((*key, program.haste.life(*key)));
        }
    }

    /// Whether a key may be missing for a call that needs it.
    pub(super) fn may_be_missing(
        &mut self,
        line: &Line,
        exists: bool,
        failure: &Failure,
        program: &Program,
    ) -> bool {
        if failure.reason != Reason::KeyNotFound {
            return false;
        }
        match line {
            Line::Ask(key, _) => {
                assert!(!exists, "key {key} is there, and is not found: {failure}");
                self.met.asked += 1;
                true
            }
            Line::Probe(key) => {
                self.check_gone(*key, program);
                true
            }
            _ => false,
        }
    }

    /// A key is missing after its removal expired or was cancelled: checks that all programs have removed it.
    pub(super) fn check_gone(&self, key: u64, program: &Program) {
        let life = program.haste.life(key);
        let removes = |rank| self.lives.removing.contains(&(key, life, rank));
        let active = |rank: &u32| !self.model.gone.contains(rank);
        let all = (0..self.scenario.limits.workers).filter(active).all(removes);
        assert!(all, "key {key} is gone, and not all have removed it");
    }
}
