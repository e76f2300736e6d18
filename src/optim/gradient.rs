//! What rules make of a sum before they use it.

use crate::kernel::Number;

/// How a sum of gradients is taken.
#[derive(Clone, Copy)]
pub(super) struct Gradient {
    /// What gradients are multiplied by.
    pub(super) rescale: f64,
    /// What gradients are clipped to; infinite if they are not.
    pub(super) clip: f64,
    /// Weight decay.
    pub(super) wd: f64,
}

impl Gradient {
    /// clip(rescale * sum).
    #[inline(always)]
    pub(super) fn clipped<N: Number>(self, sum: N) -> N {
        (N::of(self.rescale) * sum).clip(N::of(self.clip))
    }

    /// clip(rescale * sum) + wd * value.
    #[inline(always)]
    pub(super) fn clipped_and_decayed<N: Number>(self, sum: N, value: N) -> N {
        self.clipped(sum) + N::of(self.wd) * value
    }

    /// clip(rescale * sum + wd * value).
    #[inline(always)]
    pub(super) fn decayed_and_clipped<N: Number>(self, sum: N, value: N) -> N {
        (N::of(self.rescale) * sum + N::of(self.wd) * value).clip(N::of(self.clip))
    }
}
