//! Messages that were not sent yet, the most urgent first.

use std::collections::{BTreeMap, VecDeque};

use foldhash::HashMap;

use super::wire::Message;

/// Levels that are kept though nothing is in them.
const KEPT: usize = 4;

#[derive(Debug)]
pub(super) struct Queued<D> {
    pub(super) message: Message<D>,
    pub(super) token: Option<u64>,
    age: u64,
}

#[derive(Debug)]
pub(super) struct Queue<D> {
    /// By urgency, small numbers first; in each the oldest first.
    levels: BTreeMap<i64, VecDeque<Queued<D>>>,
    /// Urgency and age of the last slice of each key that was queued.
    last: HashMap<u64, (i64, u64)>,
    age: u64,
    len: usize,
}

impl<D> Default for Queue<D> {
    fn default() -> Self {
        Self { levels: BTreeMap::new(), last: HashMap::default(), age: 0, len: 0 }
    }
}

impl<D> Queue<D> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a message in line. Larger priorities are earlier; slices of one key keep their order, and
    /// so do messages of one priority.
    pub(super) fn push(&mut self, message: Message<D>, priority: i32, token: Option<u64>) {
        if self.is_empty() {
            self.last.clear();
        }
        let mut urgency = -i64::from(priority);
        if message.head.kind.carries_data() {
            let before = self.last.get(&message.head.key).filter(|place| self.has(**place));
            urgency = before.map_or(urgency, |(last, _)| urgency.max(*last));
            self.last.insert(message.head.key, (urgency, self.age));
        }
        let queued = Queued { message, token, age: self.age };
        self.levels.entry(urgency).or_default().push_back(queued);
        self.age += 1;
        self.len += 1;
    }

    /// Whether what was queued there is there still.
    fn has(&self, (urgency, age): (i64, u64)) -> bool {
        let first = self.levels.get(&urgency).and_then(VecDeque::front);
        first.is_some_and(|first| first.age <= age)
    }

    pub(super) fn pop(&mut self) -> Option<Queued<D>> {
        let (urgency, level) = self.levels.iter_mut().find(|(_, level)| !level.is_empty())?;
        let (urgency, queued) = (*urgency, level.pop_front());
        if level.is_empty() && self.levels.len() > KEPT {
            self.levels.remove(&urgency);
        }
        self.len -= usize::from(queued.is_some());
        queued
    }
}
