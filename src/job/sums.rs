//! Sums of workers that servers join to a tree, as they travel.

use crate::tensor::DType;

/// Codec number on the wire of a worker's sum whose dtype is not that of the key.
pub(crate) const SUBTREE: u16 = 6;

/// Dtype of the sums of workers for keys of a dtype: servers round those of 16 bits, once for all
/// workers.
pub(crate) fn sum_dtype(dtype: DType) -> DType {
    if dtype.is_half() { DType::F32 } else { dtype }
}
