//! Calls that programs give up, because their time is short or because they are cancelled, and call
//! again; and calls that ask for keys that may not be there.

use std::collections::{BTreeMap, BTreeSet};

use super::Bytes;
use super::cluster::{Cluster, Program};
use super::program::Line;
use crate::job::{Failure, Peer, Reason, Time};
use crate::worker::{OpId, Worker};

/// What a program has called in haste, and when it cancels it.
#[derive(Default)]
pub(super) struct Haste {
    lines: BTreeMap<OpId, Line>,
    cancels: BTreeMap<Time, OpId>,
    /// The next barrier is the one that was given up.
    pub(super) same_barrier: bool,
    /// By key, how often this program has removed it.
    lives: BTreeMap<u64, u32>,
}

/// What all programs have done with keys, by key and life.
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

    /// Whether something is called in haste.
    pub(super) fn is_busy(&self) -> bool {
        !self.lines.is_empty()
    }

    fn life(&self, key: u64) -> u32 {
        self.lives.get(&key).copied().unwrap_or(0)
    }
}

impl Cluster {
    /// Cancels what has had its time.
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

    /// A call was given up: what has not taken effect is called again.
    fn again(id: OpId, program: &mut Program) {
        let Some(line) = program.haste.lines.remove(&id) else { return };
        let lines = program.lines.get_or_insert_default();
        match &line {
            // They take effect.
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

    /// Whether a call has ended as one in haste may.
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

    /// A program calls something that concerns the life of a key; gives whether the key exists for sure.
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

    /// A call that concerns the life of a key has succeeded.
    pub(super) fn note_success(&mut self, line: &Line, program: &Program) {
        if let Line::Init(key, ..) = line {
            self.lives.initialised.insert((*key, program.haste.life(*key)));
        }
    }

    /// Whether a key may be missing for a call that asks for it.
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
                assert!(!exists, "key {key} is there, and is not found: {}", failure.text);
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

    /// A key is gone whose removal this program has given up: all have removed it.
    pub(super) fn check_gone(&self, key: u64, program: &Program) {
        let life = program.haste.life(key);
        let removes = |rank| self.lives.removing.contains(&(key, life, rank));
        let active = |rank: &u32| !self.model.gone.contains(rank);
        let all = (0..self.scenario.limits.workers).filter(active).all(removes);
        assert!(all, "key {key} is gone, and not all have removed it");
    }
}
