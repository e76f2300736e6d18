//! Streams: command queues and their scheduler, which runs only when a caller waits or queries.
//!
//! A command is ready when the commands before it in its stream have run and its dependencies on other
//! streams are met: events, and the implicit synchronization of the legacy stream with all blocking
//! streams of its device. The scheduler draws the next of the ready streams from a seed.

mod command;
mod handles;
mod machine;
mod order;

use std::collections::{BTreeMap, VecDeque};

use crate::error::{Code, Result};
pub(crate) use command::{Command, Event, Source};
pub(crate) use handles::Handles;
pub(crate) use machine::Machine;
use order::{Candidate, Order};

/// Which rules a stream has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ordered with all blocking streams of its device.
    Legacy,
    Blocking,
    NonBlocking,
    /// The default stream of the thread with this number; it is blocking.
    PerThread(u64),
}

/// A capture into a graph: commands are dropped instead of queued.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capture {
    pub(crate) mode: u32,
    pub(crate) thread: u64,
    pub(crate) is_valid: bool,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) device: usize,
    pub(crate) kind: Kind,
    pub(crate) priority: i32,
    pub(crate) capture: Option<Capture>,
    queue: VecDeque<(u64, Command)>,
    is_destroyed: bool,
}

/// All streams of all devices, by the identity that is never used again.
#[derive(Debug)]
pub(crate) struct Streams {
    all: BTreeMap<u64, Stream>,
    order: Order,
    next_id: u64,
    /// Number of the next command: earlier commands have lower ones.
    next_command: u64,
}

impl Streams {
    pub(crate) fn new(seed: u64) -> Self {
        Self { all: BTreeMap::new(), order: Order::new(seed), next_id: 1, next_command: 0 }
    }

    /// Draws the order of what follows from another seed.
    pub(crate) fn seed(&mut self, seed: u64) {
        self.order = Order::new(seed);
    }

    pub(crate) fn create(&mut self, device: usize, kind: Kind, priority: i32) -> u64 {
        let (id, queue) = (self.next_id, VecDeque::new());
        self.next_id += 1;
        let stream = Stream { device, kind, priority, capture: None, queue, is_destroyed: false };
        self.all.insert(id, stream);
        id
    }

    /// The default stream of a device of this kind, which is made when it is used first.
    pub(crate) fn default(&mut self, device: usize, kind: Kind) -> u64 {
        let is_it = |stream: &Stream| stream.device == device && stream.kind == kind;
        let found = self.all.iter().find(|(_, stream)| is_it(stream)).map(|(id, _)| *id);
        found.unwrap_or_else(|| self.create(device, kind, 0))
    }

    pub(crate) fn get(&self, id: u64) -> Result<&Stream> {
        self.all.get(&id).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Result<&mut Stream> {
        self.all.get_mut(&id).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.all.values()
    }

    /// Queued commands still run.
    pub(crate) fn destroy(&mut self, id: u64) {
        if let Some(stream) = self.all.get_mut(&id) {
            stream.is_destroyed = true;
        }
        self.forget_empty(id);
    }

    fn forget_empty(&mut self, id: u64) {
        if self.all.get(&id).is_some_and(|it| it.is_destroyed && it.queue.is_empty()) {
            self.all.remove(&id);
        }
    }

    /// Drops all commands of a device, whose context is reset. Events pass: streams of other devices
    /// may wait for them.
    pub(crate) fn clear(&mut self, device: usize) {
        let of_device = self.all.values_mut().filter(|stream| stream.device == device);
        for (_, command) in of_device.flat_map(|stream| stream.queue.drain(..)) {
            command.pass();
        }
        self.all.retain(|_, stream| !stream.is_destroyed || !stream.queue.is_empty());
    }

    /// Queues a command; on some seeds commands run at once.
    pub(crate) fn queue(&mut self, id: u64, command: Command, machine: &mut Machine) -> Result<()> {
        let number = self.next_command;
        self.next_command += 1;
        let stream = self.get_mut(id)?;
        if stream.capture.is_none() {
            stream.queue.push_back((number, command));
            for _ in 0..self.order.eager_steps() {
                self.step(None, machine);
            }
        }
        Ok(())
    }

    /// Whether the rules between streams let the first command of a stream run.
    fn is_ready(&self, stream: &Stream) -> bool {
        let Some((number, command)) = stream.queue.front() else { return false };
        if !command.is_ready() {
            return false;
        }
        let waits_for = |kind: Kind| match stream.kind {
            Kind::Legacy => matches!(kind, Kind::Blocking | Kind::PerThread(_)),
            Kind::Blocking | Kind::PerThread(_) => kind == Kind::Legacy,
            Kind::NonBlocking => false,
        };
        let is_before = |other: &Stream| {
            other.device == stream.device
                && waits_for(other.kind)
                && other.queue.front().is_some_and(|(earlier, _)| earlier < number)
        };
        !self.all.values().any(is_before)
    }

    /// Runs one command. Whether there was one.
    fn step(&mut self, target: Option<u64>, machine: &mut Machine) -> bool {
        let ready = self.all.iter().filter(|(_, stream)| self.is_ready(stream));
        let ready: Vec<Candidate> = ready
            .map(|(id, stream)| {
                let is_copy = stream.queue.front().is_some_and(|(_, command)| command.is_copy());
                Candidate { id: *id, is_copy, is_destroyed: stream.is_destroyed }
            })
            .collect();
        let Some(id) = self.order.choose(&ready, target, self.next_id) else { return false };
        let Some(stream) = self.all.get_mut(&id) else { return false };
        let device = stream.device;
        if let Some((_, command)) = stream.queue.pop_front() {
            machine.run(device, command, self.order.draw());
        }
        self.forget_empty(id);
        true
    }

    /// Whether everything that a stream had has run.
    pub(crate) fn is_idle(&self, id: u64) -> bool {
        self.all.get(&id).is_none_or(|stream| stream.queue.is_empty())
    }

    /// Whether everything that the streams of a device had has run.
    pub(crate) fn is_device_idle(&self, device: usize) -> bool {
        self.all.values().all(|stream| stream.device != device || stream.queue.is_empty())
    }

    /// Runs a few commands of any streams, as time passes between queries.
    pub(crate) fn run_a_little(&mut self, machine: &mut Machine) {
        for _ in 0..self.order.query_steps() {
            self.step(None, machine);
        }
    }

    /// Runs commands until a condition holds. False on a deadlock: no command is ready.
    pub(crate) fn run_until(
        &mut self,
        target: Option<u64>,
        machine: &mut Machine,
        holds: impl Fn(&Self, &Machine) -> bool,
    ) -> bool {
        while !holds(self, machine) {
            if !self.step(target, machine) {
                return false;
            }
        }
        true
    }
}
