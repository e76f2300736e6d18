//! The memory of a key on a device.

use std::sync::Arc;

use smallvec::SmallVec;

use super::budget::MemoryBudget;
use super::context::Device;
use super::jobs::RuleArrays;
use super::mark::{Mark, Marks};
use super::memory::Span;
use super::reuse::scratch::allocate;
use super::stream::Stream;
use crate::error::Result;
use crate::kernel::MAX_STATES;
use crate::optim::KeptArrays;

/// A key's value on a device, and the arrays that an optimizer keeps for it.
pub(crate) struct KeyMemory {
    device: &'static Device,
    budget: Arc<MemoryBudget>,
    value: Span,
    /// The unrounded value of an f16 or bf16 key.
    master: Option<Span>,
    states: SmallVec<[Span; MAX_STATES]>,
    /// The last uses of all of it.
    pub(crate) marks: Marks,
}

/// The arrays that an optimizer needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WantedSpans {
    pub(crate) states: usize,
    /// Bytes of each of them.
    pub(crate) state_bytes: usize,
    /// Bytes of the master, if there is to be one.
    pub(crate) master: Option<usize>,
}

/// Which arrays [`KeyMemory::grow`] has added.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Growth {
    /// Whether there is one: later calls wait for what has been queued for it.
    pub(crate) any: bool,
    /// Whether the master is new: its content is to be set.
    pub(crate) master: bool,
}

impl KeyMemory {
    /// Room for a value, which is to be written.
    pub(crate) fn new(
        device: &'static Device,
        budget: &Arc<MemoryBudget>,
        bytes: usize,
        stream: &Stream,
    ) -> Result<Self> {
        let budget = Arc::clone(budget);
        let value = budget.take(device.ordinal, bytes, || allocate(device, bytes, stream))?;
        let mut memory = Self {
            device,
            budget,
            value,
            master: None,
            states: SmallVec::new(),
            marks: Marks::default(),
        };
        // Whatever frees it comes behind its allocation.
        memory.marks.note_writer(&Mark::record(device, stream)?);
        Ok(memory)
    }

    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Span> {
        self.budget.take(self.device.ordinal, bytes, || allocate(self.device, bytes, stream))
    }

    fn release(&self, span: Span, stream: &Stream) {
        self.budget.give_back(self.device.ordinal, span.bytes());
        span.release(stream);
    }

    pub(crate) fn device(&self) -> &'static Device {
        self.device
    }

    /// Adds arrays of so many bytes, whose content is to be set.
    pub(crate) fn add_arrays(
        &mut self,
        states: &[usize],
        master: Option<usize>,
        stream: &Stream,
    ) -> Result<()> {
        for bytes in states {
            self.states.push(self.allocate(*bytes, stream)?);
        }
        self.master = master.map(|bytes| self.allocate(bytes, stream)).transpose()?;
        Ok(())
    }

    /// Addresses and bytes of the value, the states and the master.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (u64, usize)> {
        let spans = std::iter::once(&self.value).chain(&self.states).chain(&self.master);
        spans.map(|span| (span.address(), span.bytes()))
    }

    /// The arrays that an optimizer keeps.
    pub(crate) fn kept(&self) -> KeptArrays {
        KeptArrays { states: self.states.len(), has_master: self.master.is_some() }
    }

    /// The address of the value.
    pub(crate) fn value(&self) -> u64 {
        self.value.address()
    }

    /// The address of the master.
    pub(crate) fn master(&self) -> Option<u64> {
        self.master.as_ref().map(Span::address)
    }

    /// The arrays that a rule changes.
    pub(crate) fn arrays(&self) -> RuleArrays {
        let mut states = [0; MAX_STATES];
        states.iter_mut().zip(&self.states).for_each(|(to, state)| *to = state.address());
        RuleArrays { value: self.master().unwrap_or(self.value()), states }
    }

    /// Frees all of it, behind its last use.
    fn free_all(&mut self) -> Result<()> {
        self.forget_states()?;
        let own = self.device.own_stream()?;
        self.value.move_to(&own);
        Ok(())
    }

    /// Frees the arrays of an optimizer, behind their last use.
    pub(crate) fn forget_states(&mut self) -> Result<()> {
        let own = self.device.own_stream()?;
        self.marks.order_writer(&own)?;
        let states = std::mem::take(&mut self.states);
        let spans = states.into_iter().chain(self.master.take());
        spans.for_each(|span| self.release(span, &own));
        Ok(())
    }

    /// Ensures that the wanted arrays exist; the stream is ordered behind the marks. New states are
    /// zero.
    pub(crate) fn grow(&mut self, wanted: WantedSpans, stream: &Stream) -> Result<Growth> {
        let mut growth = Growth { any: self.states.len() < wanted.states, master: false };
        while self.states.len() < wanted.states {
            let state = self.allocate(wanted.state_bytes, stream)?;
            state.clear(stream)?;
            self.states.push(state);
        }
        let Some(bytes) = wanted.master else {
            self.forget_master(stream);
            return Ok(growth);
        };
        if self.master.is_none() {
            self.master = Some(self.allocate(bytes, stream)?);
            growth = Growth { any: true, master: true };
        }
        Ok(growth)
    }

    /// Frees the master: it is not wanted, or its content could not be set.
    pub(crate) fn forget_master(&mut self, stream: &Stream) {
        if let Some(master) = self.master.take() {
            self.release(master, stream);
        }
    }
}

impl Drop for KeyMemory {
    fn drop(&mut self) {
        // An error: the device is lost, or the process ends.
        if self.device.is_usable()
            && let Ok(_scope) = self.device.enter()
        {
            let _ = self.free_all();
        }
        self.budget.give_back(self.device.ordinal, self.spans().map(|(_, bytes)| bytes).sum());
    }
}
