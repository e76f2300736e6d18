//! Send queue of a link (also: priority queue): unsent messages, the most urgent first.

use std::collections::{BTreeMap, VecDeque};

use foldhash::HashMap;

use super::job::DeliveryToken;
use super::message::Message;

/// Maximum empty levels whose memory is kept, and of the messages of each.
const KEPT: usize = 4;
const KEPT_MESSAGES: usize = 16_384;

#[derive(Debug)]
pub(super) struct QueuedMessage<D> {
    pub(super) message: Message<D>,
    pub(super) token: Option<DeliveryToken>,
    age: u64,
}

#[derive(Debug)]
pub(super) struct SendQueue<D> {
    /// By urgency, small numbers first; each level is a FIFO, and none is empty.
    levels: BTreeMap<i64, VecDeque<QueuedMessage<D>>>,
    /// Memory of former levels.
    spare: Vec<VecDeque<QueuedMessage<D>>>,
    /// Urgency of the least urgent queued slice: a slice that is no more urgent overtakes none.
    slowest: i64,
    /// Urgency and age of the last queued slice of each key; None before a slice might overtake.
    last: Option<HashMap<u64, (i64, u64)>>,
    age: u64,
    len: usize,
}

impl<D> Default for SendQueue<D> {
    fn default() -> Self {
        let (levels, spare) = (BTreeMap::new(), Vec::new());
        Self { levels, spare, slowest: i64::MIN, last: None, age: 0, len: 0 }
    }
}

impl<D> SendQueue<D> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether the next message is of this priority.
    pub(super) fn is_next(&self, priority: i32) -> bool {
        self.levels.first_key_value().is_some_and(|(urgency, _)| *urgency == -i64::from(priority))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Next message, not removed.
    pub(super) fn first(&self) -> Option<&Message<D>> {
        let (_, level) = self.levels.first_key_value()?;
        level.front().map(|first| &first.message)
    }

    /// Queues a message. Larger priorities are earlier; slices of one key keep their order, and so do
    /// messages of one priority.
    pub(super) fn push(
        &mut self,
        message: Message<D>,
        priority: i32,
        token: Option<DeliveryToken>,
    ) {
        if self.is_empty() {
            (self.slowest, self.last) = (i64::MIN, None);
        }
        let mut urgency = -i64::from(priority);
        if message.head.kind.carries_slice() {
            urgency = self.place(message.head.key, urgency);
        }
        let queued = QueuedMessage { message, token, age: self.age };
        let level = self.levels.entry(urgency);
        level.or_insert_with(|| self.spare.pop().unwrap_or_default()).push_back(queued);
        self.age += 1;
        self.len += 1;
    }

    /// Urgency of a slice, limited so that it stays behind those of its key.
    fn place(&mut self, key: u64, urgency: i64) -> i64 {
        if urgency >= self.slowest && self.last.is_none() {
            self.slowest = urgency;
            return urgency;
        }
        let mut last = self.last.take().unwrap_or_else(|| self.last_of_keys());
        let before = last.get(&key).filter(|place| self.has(**place));
        let urgency = before.map_or(urgency, |(last, _)| urgency.max(*last));
        last.insert(key, (urgency, self.age));
        self.last = Some(last);
        urgency
    }

    /// Urgency and age of the last slice of each key.
    fn last_of_keys(&self) -> HashMap<u64, (i64, u64)> {
        let mut last = HashMap::default();
        for (urgency, level) in &self.levels {
            for QueuedMessage { message, age, .. } in level {
                if message.head.kind.carries_slice() {
                    last.insert(message.head.key, (*urgency, *age));
                }
            }
        }
        last
    }

    /// Whether the message of this urgency and age is still queued.
    fn has(&self, (urgency, age): (i64, u64)) -> bool {
        let first = self.levels.get(&urgency).and_then(VecDeque::front);
        first.is_some_and(|first| first.age <= age)
    }

    pub(super) fn pop(&mut self) -> Option<QueuedMessage<D>> {
        self.pop_if(|_| true)
    }

    /// Removes the next message, if the predicate accepts it.
    pub(super) fn pop_if(
        &mut self,
        wanted: impl FnOnce(&Message<D>) -> bool,
    ) -> Option<QueuedMessage<D>> {
        let mut level = self.levels.first_entry()?;
        level.get().front().filter(|first| wanted(&first.message))?;
        let queued = level.get_mut().pop_front()?;
        self.len -= 1;
        if level.get().is_empty() {
            let mut level = level.remove();
            level.shrink_to(KEPT_MESSAGES);
            if self.spare.len() < KEPT {
                self.spare.push(level);
            }
        }
        Some(queued)
    }
}

#[cfg(test)]
mod tests {
    use super::SendQueue;
    use crate::message::{Body, Message, MessageKind};
    use crate::sim::{Bytes, Random};

    /// Urgency, age, key, and whether it is a slice.
    type Line = Vec<(i64, u64, u64, bool)>;

    #[test]
    fn the_most_urgent_is_first_and_no_slice_is_before_one_of_its_key() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let (mut queue, mut line) = (SendQueue::<Bytes>::default(), Line::new());
            let (keys, levels) = (1 + random.below(6), 1 + random.below(4));
            for age in 0..400 {
                if random.below(5) < 2 {
                    line.sort_unstable();
                    let first = (!line.is_empty()).then(|| line.remove(0));
                    let popped = queue.pop().map(|queued| queued.message.head.round);
                    assert_eq!(popped, first.map(|first| first.1), "seed {seed}");
                    continue;
                }
                let (key, slice) = (random.below(keys), random.below(4) > 0);
                let level = i32::try_from(random.below(levels)).unwrap();
                let kind = if slice { MessageKind::Push } else { MessageKind::Pull };
                let mut message = Message::of_key(kind, key, 1, Vec::new());
                message.head.round = age;
                if slice {
                    message.body = Body::Data(Bytes::new(&[]));
                }
                queue.push(message, -level, None);
                let before = line.iter().filter(|other| slice && other.3 && other.2 == key);
                let urgency = before.map(|other| other.0).chain([level.into()]).max().unwrap();
                line.push((urgency, age, key, slice));
                assert_eq!(queue.len(), line.len());
            }
        }
    }
}
