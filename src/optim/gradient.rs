//! Preprocessing of a gradient sum: rescaling, clipping, weight decay.

use crate::kernel::Number;

/// How a sum of gradients is preprocessed.
#[derive(Clone, Copy)]
pub(super) struct Gradient {
    /// Factor of gradients.
    pub(super) rescale: f64,
    /// Bound of clipped gradients; infinite without clipping.
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
