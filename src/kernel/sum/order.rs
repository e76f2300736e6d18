//! The order in which a pass adds its inputs up: left to right, or by a binary tree over their
//! positions (also called: pairwise summation).

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use crate::kernel::lanes::Lanes;

/// The order of a sum. Each order gives the same bits in all builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SumOrder<'a> {
    /// Left to right.
    Linear,
    /// The binary tree over the places of the inputs: halves are added pairwise, the number of
    /// inputs is rounded up to a power of two, and missing inputs are skipped.
    Tree,
    /// A tree in which inputs are missing: for each input, how many partial sums are joined to it
    /// from the stack, the newest first, before the next input is loaded.
    Joins(&'a [u8]),
}

/// Maximum inputs of a tree that are added in registers.
const MOST_FEW: usize = 8;

/// Maximum inputs of a tree that are added left to right: `(a + b) + c`.
const MOST_LINEAR: usize = 3;

/// Maximum partial sums of a position of 128 bits: one for each bit, and the newest.
const MOST_PARTIAL: usize = 129;

impl SumOrder<'_> {
    /// Whether so many inputs are added up as [`SumOrder::Linear`] would.
    #[inline]
    pub(in crate::kernel) fn is_linear(self, inputs: usize) -> bool {
        match self {
            Self::Linear => true,
            Self::Tree => inputs <= MOST_LINEAR,
            Self::Joins(_) => inputs <= 2,
        }
    }

    /// Whether so many inputs are added up in registers, without a stack.
    #[inline]
    pub(in crate::kernel) fn is_in_registers(self, inputs: usize) -> bool {
        self.is_linear(inputs) || matches!(self, Self::Tree) && inputs <= MOST_FEW
    }
}

/// The joins of the tree over so many places: behind a place, those of the halves that end there.
#[allow(clippy::cast_possible_truncation, reason = "a place has 64 bits")]
pub(in crate::kernel) fn dense_joins(inputs: usize) -> SmallVec<[u8; 64]> {
    (0..inputs).map(|place| place.trailing_ones() as u8).collect()
}

/// How a register's elements of all inputs are added up.
pub(in crate::kernel) trait Adding: Copy {
    /// Whether instances for the usual numbers of inputs pay.
    const INSTANCES: bool;

    /// Minimum inputs.
    const LEAST: usize = 1;

    /// The sum of the inputs' elements from a byte on.
    ///
    /// # Safety
    /// Every input has `L::BYTES` bytes there; the instruction set is there.
    unsafe fn add_up<L: Lanes>(self, inputs: &[*const u8], at: usize) -> L::Register;
}

/// See [`SumOrder::Linear`].
#[derive(Clone, Copy)]
pub(in crate::kernel) struct LeftToRight;

/// See [`SumOrder::Tree`]; at most [`MOST_FEW`] inputs.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct TreeOfFew;

/// One of both, chosen anew for each register: half of the loops.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct EitherOfFew {
    pub(in crate::kernel) by_tree: bool,
}

/// See [`SumOrder::Joins`].
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Joined<'a>(pub(in crate::kernel) &'a [u8]);

impl Adding for LeftToRight {
    const INSTANCES: bool = true;

    #[inline(always)]
    unsafe fn add_up<L: Lanes>(self, inputs: &[*const u8], at: usize) -> L::Register {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = L::load(inputs[0].add(at));
            for input in &inputs[1..] {
                sum = L::add(sum, L::load(input.add(at)));
            }
            sum
        }
    }
}

impl Adding for TreeOfFew {
    const INSTANCES: bool = true;
    const LEAST: usize = MOST_LINEAR + 1;

    #[inline(always)]
    unsafe fn add_up<L: Lanes>(self, inputs: &[*const u8], at: usize) -> L::Register {
        debug_assert!(
            (Self::LEAST..=MOST_FEW).contains(&inputs.len()),
            "others are added otherwise"
        );
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = L::add(pair::<L>(inputs, 0, at), pair::<L>(inputs, 2, at));
            if inputs.len() > 4 {
                let mut right = pair::<L>(inputs, 4, at);
                if inputs.len() > 6 {
                    right = L::add(right, pair::<L>(inputs, 6, at));
                }
                sum = L::add(sum, right);
            }
            sum
        }
    }
}

impl Adding for EitherOfFew {
    const INSTANCES: bool = false;

    #[inline(always)]
    unsafe fn add_up<L: Lanes>(self, inputs: &[*const u8], at: usize) -> L::Register {
        // SAFETY: the caller's promise.
        unsafe {
            if self.by_tree {
                TreeOfFew.add_up::<L>(inputs, at)
            } else {
                LeftToRight.add_up::<L>(inputs, at)
            }
        }
    }
}

/// The input at a place, and the next one, if there is one.
///
/// # Safety
/// As [`Adding::add_up`]; the input is there.
#[inline(always)]
unsafe fn pair<L: Lanes>(inputs: &[*const u8], place: usize, at: usize) -> L::Register {
    // SAFETY: the caller's promise.
    unsafe {
        let first = L::load(inputs[place].add(at));
        match inputs.get(place + 1) {
            Some(second) => L::add(first, L::load(second.add(at))),
            None => first,
        }
    }
}

impl Adding for Joined<'_> {
    const INSTANCES: bool = false;

    #[inline(always)]
    unsafe fn add_up<L: Lanes>(self, inputs: &[*const u8], at: usize) -> L::Register {
        let mut stack = [const { MaybeUninit::<L::Register>::uninit() }; MOST_PARTIAL];
        let mut depth = 0;
        // SAFETY: the caller's promise; what is below `depth` has been written.
        unsafe {
            let mut sum = L::load(inputs[0].add(at));
            for (input, joins) in inputs[1..].iter().zip(self.0) {
                for _ in 0..*joins {
                    depth -= 1;
                    sum = L::add(stack[depth].assume_init(), sum);
                }
                stack[depth].write(sum);
                depth += 1;
                sum = L::load(input.add(at));
            }
            while depth > 0 {
                depth -= 1;
                sum = L::add(stack[depth].assume_init(), sum);
            }
            sum
        }
    }
}
