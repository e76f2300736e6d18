//! Arrays of any element type and any layout.

use kvstore::{DType, Tensor, TensorMut};
use ndarray::{ArrayD, Axis, IxDyn, Slice};

use super::random::Random;
use super::scalar::Scalar;
use crate::with_type;

/// An array whose element type is known at run time only.
pub trait Memory {
    fn tensor(&self) -> Tensor<'_>;
    fn tensor_mut(&mut self) -> TensorMut<'_>;
    /// The elements in row-major order.
    fn bits(&self) -> Vec<u64>;
    /// Whether the memory between and around the elements is as it was made.
    fn is_intact(&self) -> bool;
}

/// What the memory between the elements holds.
const GAP: u64 = 0x5A;

impl<T: Scalar> Memory for ArrayD<T> {
    fn tensor(&self) -> Tensor<'_> {
        self.into()
    }

    fn tensor_mut(&mut self) -> TensorMut<'_> {
        self.into()
    }

    fn bits(&self) -> Vec<u64> {
        self.iter().map(|&element| element.bits()).collect()
    }

    fn is_intact(&self) -> bool {
        let mut copy = self.clone();
        copy.fill(T::of_bits(GAP));
        let (memory, _) = copy.into_raw_vec_and_offset();
        memory.iter().all(|element| element.bits() == T::of_bits(GAP).bits())
    }
}

/// An array with these elements, half of the time with gaps, turned or reversed axes.
pub fn array(dtype: DType, shape: &[usize], bits: &[u64], random: &mut Random) -> Box<dyn Memory> {
    with_type!(dtype, T => Box::new(typed_array::<T>(shape, bits, random)))
}

fn typed_array<T: Scalar>(shape: &[usize], bits: &[u64], random: &mut Random) -> ArrayD<T> {
    let plain = random.one_in(2);
    let steps: Vec<isize> =
        shape.iter().map(|_| if plain { 1 } else { random.pick(&[1, 1, 2, 3, -1, -2]) }).collect();
    let mut axes: Vec<usize> = (0..shape.len()).collect();
    if !plain {
        random.shuffle(&mut axes);
    }
    // The memory lies in the order of `axes`, each with room for its steps.
    let room: Vec<usize> =
        axes.iter().map(|&axis| shape[axis] * steps[axis].unsigned_abs()).collect();
    let mut array = ArrayD::from_elem(IxDyn(&room), T::of_bits(GAP));
    for (place, &axis) in axes.iter().enumerate() {
        array.slice_axis_inplace(Axis(place), Slice::new(0, None, steps[axis]));
    }
    let mut place_of = vec![0; axes.len()];
    for (place, &axis) in axes.iter().enumerate() {
        place_of[axis] = place;
    }
    let mut array = array.permuted_axes(place_of);
    assert_eq!(array.shape(), shape);
    for (element, &bits) in array.iter_mut().zip(bits) {
        *element = T::of_bits(bits);
    }
    array
}
