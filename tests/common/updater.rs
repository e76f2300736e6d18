//! The updater that most tests use.

use std::ops::AddAssign;

use kvstore::{Element, Key, Tensor, TensorMut, UpdaterError};

/// `stored += input`, for keys of elements `T`.
pub fn add<T: Element + AddAssign>(
    _: Key,
    input: &Tensor<'_>,
    stored: &mut TensorMut<'_>,
) -> std::result::Result<(), UpdaterError> {
    let input = input.as_slice::<T>().ok_or("another dtype")?;
    let stored = stored.as_mut_slice::<T>().ok_or("another dtype")?;
    stored.iter_mut().zip(input).for_each(|(stored, input)| *stored += *input);
    Ok(())
}
