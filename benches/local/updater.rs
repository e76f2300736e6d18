//! An updater as a user writes it in C: a plain loop, compiled with optimisation.

use std::ffi::c_void;
use std::slice;

use crate::api::Tensor;
use crate::wide::built_wide;

/// `stored -= 0.001 * input` over float32 tensors with one dimension.
pub unsafe extern "C" fn update(
    _: *mut c_void,
    _: u64,
    input: *const Tensor,
    stored: *const Tensor,
) -> i32 {
    // SAFETY: the library lends two row-major tensors of one shape, one to be changed, while
    // nobody else uses it.
    unsafe {
        let len = usize::try_from(*(*input).shape).unwrap_or(0);
        let input = slice::from_raw_parts((*input).data.cast::<f32>(), len);
        descend(slice::from_raw_parts_mut((*stored).data.cast::<f32>(), len), input);
    }
    0
}

built_wide! {
    fn descend(stored: &mut [f32], input: &[f32]) {
        for (stored, input) in stored.iter_mut().zip(input) {
            *stored -= 0.001 * input;
        }
    }
}
