//! The state of an optimizer for one key.

use std::num::NonZeroU64;
use std::ops::Range;

use smallvec::SmallVec;

use super::method::RuleScope;
use crate::error::Result;
use crate::kernel::{Isa, MAX_STATES, RuleTarget, Squares};
use crate::tensor::{Array, Buffer, DType, LINE, PageOffset};

/// Where states begin.
const PLACES: [PageOffset; MAX_STATES] =
    [PageOffset::FirstState, PageOffset::SecondState, PageOffset::ThirdState];

/// Elements whose sums of squares are one number each, which are added up one after the other. It
/// is part of the order in which a norm is summed, and never depends on threads.
pub(crate) const NORM_BLOCK: usize = 1 << 16;

/// The state of one key: made by the first push under an optimizer, replaced with the optimizer.
///
/// It lies in the key's slot; only the arrays are memory of their own.
pub(crate) struct OptimizerState {
    /// Not zero, so that a key without a state needs no flag.
    optimizer: NonZeroU64,
    /// Pushes under this optimizer.
    pub(super) count: u64,
    /// See [`super::method::PushNumbers::carried`].
    pub(super) carried: f64,
    /// None until an array is needed.
    buffers: Option<Box<StateBuffers>>,
}

/// The memory of a state's arrays.
#[derive(Default)]
struct StateBuffers {
    states: SmallVec<[Buffer; MAX_STATES]>,
    /// The unrounded value of an f16 or bf16 key.
    master: Option<Buffer>,
    /// Room for the sums of a norm.
    sums: Option<Buffer>,
}

/// A key's value, as its state is made for it.
#[derive(Clone, Copy)]
pub(crate) struct Stored {
    pub(crate) array: Array,
    pub(crate) count: usize,
    /// Extent of the first axis, 1 without one, 0 without elements.
    pub(crate) rows: usize,
}

impl Stored {
    /// How long an array of state is.
    pub(super) fn length(&self, scope: RuleScope) -> usize {
        if scope == RuleScope::Row { self.rows } else { self.count }
    }

    /// Memory for so many numbers that a rule keeps for the value, which are zero; see
    /// [`Buffer::zeroed`].
    pub(super) fn buffer(
        &self,
        length: usize,
        place: PageOffset,
        scattered: bool,
    ) -> Result<Buffer> {
        let (dtype, full) = (self.array.dtype(), self.array.dtype().full());
        let near = self.array.start().wrapping_sub(PageOffset::Stored as usize);
        // Our arrays may be of wider elements than the caller's.
        let near = near.map_addr(|it| if full == dtype { it } else { it & !(LINE - 1) });
        let mut buffer = Buffer::zeroed(length * full.size(), scattered)?;
        buffer.place(near, place);
        Ok(buffer)
    }
}

/// The arrays that an optimizer needs.
#[derive(Clone, Copy)]
pub(super) struct WantedArrays {
    pub(super) states: usize,
    pub(super) scope: RuleScope,
    /// Whether the value of an f16 or bf16 key has a master.
    pub(super) masters: bool,
}

/// The arrays that an optimizer needs for a key whose arrays are on a device.
#[cfg(feature = "cuda")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArraysElsewhere {
    /// Whether those that there are belong to an earlier optimizer.
    pub(crate) is_stale: bool,
    pub(crate) states: usize,
    /// Elements of each state.
    pub(crate) length: usize,
    /// As [`StateArrays::rows`].
    pub(crate) rows: Option<usize>,
    /// Whether the rule needs norms of the whole key.
    pub(crate) measures_key: bool,
    pub(crate) has_master: bool,
}

/// The arrays of a key's state.
#[derive(Default)]
pub(crate) struct StateArrays {
    /// In order, none behind the last.
    states: [Option<Array>; MAX_STATES],
    master: Option<Array>,
    sums: Option<Array>,
    /// How many rows there are, if each has a number of state and more than one element.
    pub(crate) rows: Option<usize>,
}

impl OptimizerState {
    pub(super) fn new(optimizer: NonZeroU64) -> Self {
        Self { optimizer, count: 0, carried: 0.0, buffers: None }
    }

    pub(super) fn belongs_to(&self, optimizer: NonZeroU64) -> bool {
        self.optimizer == optimizer
    }

    /// The arrays of state, and the master.
    pub(crate) fn arrays(&self) -> (&[Buffer], Option<&Buffer>) {
        let buffers = self.buffers.as_deref();
        buffers.map_or((&[], None), |it| (&it.states, it.master.as_ref()))
    }

    /// Whether another one has as many arrays, of these sizes.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let ((mine, master), (theirs, other_master)) = (self.arrays(), other.arrays());
        let lens = |states: &[Buffer]| states.iter().map(Buffer::len).collect::<SmallVec<[_; 3]>>();
        lens(mine) == lens(theirs) && master.map(Buffer::len) == other_master.map(Buffer::len)
    }

    /// Memory for a copy of it: arrays of these sizes, whose content is undefined.
    pub(crate) fn twin(&self) -> Result<Self> {
        let twin = |buffer: &Buffer| {
            let mut twin = Buffer::new(buffer.len())?;
            twin.place(buffer.as_ptr(), PageOffset::ThirdState);
            Ok(twin)
        };
        let (states, master) = self.arrays();
        let buffers = StateBuffers {
            states: states.iter().map(twin).collect::<Result<_>>()?,
            master: master.map(twin).transpose()?,
            sums: None,
        };
        let buffers = self.buffers.is_some().then(|| Box::new(buffers));
        Ok(Self { buffers, ..Self::new(self.optimizer) })
    }

    /// Calls `visit` with each array and its counterpart in a twin.
    pub(crate) fn each_array(&self, twin: &Self, mut visit: impl FnMut(&Buffer, &Buffer)) {
        let ((mine, master), (theirs, other_master)) = (self.arrays(), twin.arrays());
        mine.iter().zip(theirs).chain(master.zip(other_master)).for_each(|(a, b)| visit(a, b));
    }

    /// Takes the numbers beside the arrays.
    pub(crate) fn take_numbers(&mut self, other: &Self) {
        (self.optimizer, self.count, self.carried) = (other.optimizer, other.count, other.carried);
    }

    /// Drops the arrays, which are elsewhere from now on.
    #[cfg(feature = "cuda")]
    pub(crate) fn drop_arrays(&mut self) {
        self.buffers = None;
    }

    /// Where the arrays are described, for prefetching; null if there are none.
    pub(crate) fn arrays_at(&self) -> *const u8 {
        self.buffers.as_deref().map_or(std::ptr::null(), |it| std::ptr::from_ref(it).cast())
    }

    /// Adds one more array of state, which is zero; returns it.
    pub(super) fn add(
        &mut self,
        scope: RuleScope,
        stored: &Stored,
        scattered: bool,
    ) -> Result<&mut Buffer> {
        self.buffers.get_or_insert_default().add(scope, stored, scattered)
    }

    /// Adds a master, whose content is to be set; returns it.
    pub(super) fn add_master(&mut self, stored: &Stored) -> Result<&mut Buffer> {
        let buffer = stored.buffer(stored.count, PageOffset::Master, false)?;
        Ok(self.buffers.get_or_insert_default().master.insert(buffer))
    }

    /// Ensures that the wanted arrays exist. New states are zero. The push may be `scattered` over
    /// few rows: most of a state may then stay untouched.
    #[inline]
    pub(super) fn grow(
        &mut self,
        wanted: WantedArrays,
        isa: Isa,
        stored: &Stored,
        scattered: bool,
    ) -> Result<StateArrays> {
        let masters = wanted.masters && stored.array.dtype().is_half();
        let needs = masters || wanted.states > 0 || wanted.scope == RuleScope::Key;
        if !needs && self.buffers.is_none() {
            return Ok(StateArrays::default());
        }
        self.buffers.get_or_insert_default().grow(wanted, isa, stored, scattered)
    }
}

impl StateBuffers {
    /// As [`OptimizerState::add`].
    fn add(&mut self, scope: RuleScope, stored: &Stored, scattered: bool) -> Result<&mut Buffer> {
        let at = self.states.len();
        let buffer = stored.buffer(stored.length(scope), PLACES[at], scattered)?;
        self.states.push(buffer);
        Ok(&mut self.states[at])
    }

    /// As [`OptimizerState::grow`].
    fn grow(
        &mut self,
        wanted: WantedArrays,
        isa: Isa,
        stored: &Stored,
        scattered: bool,
    ) -> Result<StateArrays> {
        let (dtype, length) = (stored.array.dtype(), stored.length(wanted.scope));
        let full = dtype.full();
        while self.states.len() < wanted.states {
            self.add(wanted.scope, stored, scattered)?;
        }
        if !(wanted.masters && dtype.is_half()) {
            self.master = None;
        } else if self.master.is_none() {
            let buffer = stored.buffer(stored.count, PageOffset::Master, false)?;
            isa.convert_array(&Array::of(&buffer, full), &stored.array, stored.count);
            self.master = Some(buffer);
        }
        if wanted.scope == RuleScope::Key && self.sums.is_none() {
            let sums = 2 * stored.count.div_ceil(NORM_BLOCK);
            self.sums = Some(Buffer::new(sums * DType::F64.size())?);
        }
        let array = |buffer: &Buffer| Array::of(buffer, full);
        Ok(StateArrays {
            states: std::array::from_fn(|at| self.states.get(at).map(array)),
            master: self.master.as_ref().map(array),
            sums: self.sums.as_ref().map(|sums| Array::of(sums, DType::F64)),
            rows: (length < stored.count).then_some(length),
        })
    }
}

impl StateArrays {
    /// How many arrays a pass reads and writes beside the value.
    pub(crate) fn passed(&self) -> usize {
        if self.rows.is_some() { 0 } else { self.states.iter().flatten().count() }
    }

    /// Those arrays, and the master.
    pub(crate) fn elements(&self) -> SmallVec<[Array; MAX_STATES + 1]> {
        let states = self.states.iter().flatten().take(self.passed());
        states.chain(&self.master).copied().collect()
    }

    /// Whether the stored value is only the rounded copy of a master.
    pub(crate) fn has_master(&self) -> bool {
        self.master.is_some()
    }

    /// The arrays that a rule changes in a range of the elements.
    pub(crate) fn target(&self, stored: &Array, range: &Range<usize>) -> RuleTarget {
        let mut states = [std::ptr::null_mut(); MAX_STATES];
        // Element-wise passes never see state of rows.
        for (at, state) in states.iter_mut().zip(self.states.iter().flatten()).take(self.passed()) {
            *at = state.part(range).start_mut();
        }
        let value = self.master.as_ref().unwrap_or(stored);
        RuleTarget::new(value.part(range).start_mut(), self.has_master(), states)
    }

    /// The state of one row.
    pub(crate) fn row(&self, row: usize) -> Array {
        self.states[0].expect("rules of rows have one").part(&(row..row + 1))
    }

    /// The sums of one block, for [`NORM_BLOCK`].
    pub(crate) fn sums(&self, block: usize) -> Sums {
        let sums = self.sums.expect("made for rules that measure");
        Sums(sums.part(&(2 * block..2 * block + 2)))
    }
}

/// Room for a block's sums.
pub(crate) struct Sums(Array);

impl Sums {
    pub(crate) fn put(&self, squares: Squares) {
        self.0.set_number(0, squares.measured);
        self.0.set_number(1, squares.value);
    }

    pub(crate) fn take(&self) -> Squares {
        Squares { measured: self.0.number(0), value: self.0.number(1) }
    }
}
