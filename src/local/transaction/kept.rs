//! What a key was before the first push of a transaction, in memory that stays for the next transaction.

use std::sync::atomic::AtomicU64;

use smallvec::SmallVec;

use crate::error::Result;
use crate::kernel::MAX_STATES;
use crate::optim::OptimizerState;
use crate::tensor::{Array, Buffer, DType, PageOffset};

/// An array that a push changes, where it is kept, and its length.
pub(crate) type KeptCopy = (Array, Array, usize);

/// The value, its states and its master.
pub(crate) type KeptCopies = SmallVec<[KeptCopy; MAX_STATES + 2]>;

/// What the pushes of a transaction do to the state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateChange {
    /// Nothing: they merge without a rule.
    None,
    /// The first one makes it.
    Made,
    Changed,
}

/// A key as it was. Its numbers hold while `transaction` is the one that goes on.
pub(crate) struct KeptValue {
    transaction: u64,
    buffer: Buffer,
    state: Option<OptimizerState>,
    change: StateChange,
    merges: u64,
    weighed: Option<(u64, f64)>,
    /// Squares of the gradients of the transaction, if they are measured.
    squares: Option<f64>,
    /// Memory for the squares of blocks.
    pub(crate) sums: Vec<AtomicU64>,
}

impl KeptValue {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            transaction: 0,
            buffer: Buffer::new(0)?,
            state: None,
            change: StateChange::None,
            merges: 0,
            weighed: None,
            squares: None,
            sums: Vec::new(),
        })
    }

    /// Whether its numbers hold in a transaction.
    pub(super) fn is_of(&self, transaction: u64) -> bool {
        self.transaction == transaction
    }

    pub(crate) fn squares(&self) -> Option<f64> {
        self.squares
    }

    /// Adds the squares of a gradient.
    pub(crate) fn add_squares(&mut self, squares: f64) {
        self.squares = Some(self.squares.map_or(squares, |sum| sum + squares));
    }

    /// Makes room for a value, and for a state that pushes change. Gives the arrays that are to be copied before
    /// [`Self::note`].
    pub(super) fn prepare(
        &mut self,
        (value, dtype, count): (&Buffer, DType, usize),
        state: Option<&OptimizerState>,
        change: StateChange,
    ) -> Result<KeptCopies> {
        if self.buffer.len() != value.len() {
            let mut buffer = Buffer::new(value.len())?;
            buffer.place(value.as_ptr(), PageOffset::ThirdState);
            self.buffer = buffer;
        }
        let mut copies = KeptCopies::new();
        copies.push((Array::of(value, dtype), Array::of(&self.buffer, dtype), count));
        self.change = change;
        let Some(state) = state.filter(|_| change == StateChange::Changed) else {
            return Ok(copies);
        };
        let twin = self.state.take().filter(|kept| kept.is_like(state));
        let twin = self.state.insert(twin.map_or_else(|| state.twin(), Ok)?);
        let full = dtype.full();
        state.each_array(twin, |from, to| {
            copies.push((Array::of(from, full), Array::of(to, full), from.len() / full.size()));
        });
        Ok(copies)
    }

    /// The arrays are copied, or will be before they change.
    pub(super) fn note(
        &mut self,
        transaction: u64,
        state: Option<&OptimizerState>,
        (merges, weighed): (u64, Option<(u64, f64)>),
    ) {
        if let (Some(from), Some(to), StateChange::Changed) = (state, &mut self.state, self.change)
        {
            to.take_numbers(from);
        }
        (self.transaction, self.squares) = (transaction, None);
        (self.merges, self.weighed) = (merges, weighed);
    }

    /// Exchanges the arrays for those that a value has now. Gives the numbers beside them.
    pub(super) fn exchange(
        &mut self,
        value: &mut Buffer,
        state: &mut Option<OptimizerState>,
    ) -> (u64, Option<(u64, f64)>) {
        std::mem::swap(value, &mut self.buffer);
        match self.change {
            StateChange::None => {}
            StateChange::Made => *state = None,
            StateChange::Changed => std::mem::swap(state, &mut self.state),
        }
        self.transaction = 0;
        (self.merges, self.weighed)
    }
}
