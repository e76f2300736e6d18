//! What an optimizer keeps for one key.

use std::ops::Range;

use smallvec::SmallVec;

use crate::error::Result;
use crate::kernel::{Isa, MAX_STATES, Target};
use crate::tensor::{Array, Buffer, DType, Place};

/// Where states begin.
const PLACES: [Place; MAX_STATES] = [Place::FirstState, Place::SecondState, Place::ThirdState];

/// A cache line.
const LINE: usize = 64;

/// The state of one key: made by the first push under an optimizer, replaced with the optimizer.
pub(crate) struct State {
    optimizer: u64,
    /// Pushes under this optimizer.
    pub(super) count: u64,
    states: SmallVec<[Buffer; MAX_STATES]>,
    /// The unrounded value of an f16 or bf16 key.
    master: Option<Buffer>,
}

/// The arrays of a key's state.
pub(crate) struct Arrays {
    states: SmallVec<[Array; MAX_STATES]>,
    master: Option<Array>,
}

impl State {
    pub(super) fn new(optimizer: u64) -> Self {
        Self { optimizer, count: 0, states: SmallVec::new(), master: None }
    }

    pub(super) fn belongs_to(&self, optimizer: u64) -> bool {
        self.optimizer == optimizer
    }

    /// Makes sure that there are so many states, new ones being zero, and the master if wanted.
    pub(super) fn grow(
        &mut self,
        states: usize,
        master: bool,
        isa: Isa,
        stored: &Array,
        count: usize,
    ) -> Result<Arrays> {
        let full = full(stored.dtype());
        let near = stored.start().wrapping_sub(Place::Stored as usize);
        // Our arrays may be of wider elements than the caller's.
        let near = near.map_addr(|it| if full == stored.dtype() { it } else { it & !(LINE - 1) });
        while let Some(&place) = PLACES[..states].get(self.states.len()) {
            let mut buffer = Buffer::new(count * full.size())?;
            buffer.place(near, place);
            buffer.clear();
            self.states.push(buffer);
        }
        if !master {
            self.master = None;
        } else if self.master.is_none() {
            let mut buffer = Buffer::new(count * full.size())?;
            buffer.place(near, Place::Master);
            isa.convert_array(&Array::of(&buffer, full), stored, count);
            self.master = Some(buffer);
        }
        let array = |buffer: &Buffer| Array::of(buffer, full);
        Ok(Arrays {
            states: self.states.iter().map(array).collect(),
            master: self.master.as_ref().map(array),
        })
    }
}

impl Arrays {
    /// Whether the stored value is only the rounded copy of a master.
    pub(crate) fn has_master(&self) -> bool {
        self.master.is_some()
    }

    /// What a rule changes in a range of the elements.
    pub(crate) fn target(&self, stored: &Array, range: &Range<usize>) -> Target {
        let mut states = [std::ptr::null_mut(); MAX_STATES];
        for (at, state) in states.iter_mut().zip(&self.states) {
            *at = state.part(range).start_mut();
        }
        let value = self.master.as_ref().unwrap_or(stored);
        Target { value: value.part(range).start_mut(), master: self.has_master(), states }
    }
}

/// The dtype that a rule calculates in.
fn full(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}
