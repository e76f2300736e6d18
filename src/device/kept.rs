//! The memory of a key on a device.

use smallvec::SmallVec;

use super::context::Device;
use super::jobs::RuleArrays;
use super::mark::Marks;
use super::memory::Span;
use super::stream::Stream;
use crate::error::Result;
use crate::kernel::MAX_STATES;
use crate::optim::KeptArrays;

/// A key's value on a device, and the arrays that an optimizer keeps for it.
pub(crate) struct KeyMemory {
    device: &'static Device,
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
    /// Bytes of each array.
    pub(crate) bytes: usize,
    pub(crate) has_master: bool,
}

impl KeyMemory {
    /// Room for a value, which is to be written.
    pub(crate) fn new(device: &'static Device, bytes: usize, stream: &Stream) -> Result<Self> {
        let value = Span::allocate(device, bytes, stream)?;
        let (states, marks) = (SmallVec::new(), Marks::default());
        Ok(Self { device, value, master: None, states, marks })
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
        let allocate = |bytes: &usize| Span::allocate(self.device, *bytes, stream);
        self.states = states.iter().map(allocate).collect::<Result<_>>()?;
        self.master = master.as_ref().map(allocate).transpose()?;
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

    /// Frees the arrays of an optimizer, behind their last use.
    pub(crate) fn forget_states(&mut self) -> Result<()> {
        let own = self.device.own_stream(0)?;
        self.marks.order_writer(&own)?;
        self.states.drain(..).chain(self.master.take()).for_each(|span| span.release(&own));
        Ok(())
    }

    /// Ensures that the wanted arrays exist; the stream is ordered behind the marks. New states are
    /// zero. Returns whether the master is new: its content is to be set.
    pub(crate) fn grow(&mut self, wanted: WantedSpans, stream: &Stream) -> Result<bool> {
        while self.states.len() < wanted.states {
            let state = Span::allocate(self.device, wanted.bytes, stream)?;
            state.clear(stream)?;
            self.states.push(state);
        }
        let is_new = wanted.has_master && self.master.is_none();
        if is_new {
            self.master = Some(Span::allocate(self.device, wanted.bytes, stream)?);
        } else if let Some(master) = self.master.take_if(|_| !wanted.has_master) {
            master.release(stream);
        }
        Ok(is_new)
    }

    /// Frees a master whose content could not be set.
    pub(crate) fn forget_master(&mut self, stream: &Stream) {
        self.master.take().into_iter().for_each(|master| master.release(stream));
    }
}

impl Drop for KeyMemory {
    fn drop(&mut self) {
        // The spans are freed on this stream then. An error: the device is lost, or the process ends.
        if self.device.is_usable()
            && let Ok(_scope) = self.device.enter()
        {
            let _ = self.device.own_stream(0).and_then(|own| self.marks.order_writer(&own));
        }
    }
}
