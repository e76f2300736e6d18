//! Elements of dtypes that are moved and not calculated with, as bytes.

use kvstore::{DType, Tensor, TensorMut};

use super::random::Random;

/// Every dtype whose values are never added.
pub fn opaque() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|dtype| dtype.is_opaque())
}

/// A row-major array of any dtype.
pub struct Elements {
    pub dtype: DType,
    shape: Vec<i64>,
    memory: Vec<u8>,
    /// Where an address begins that is aligned for all dtypes.
    start: usize,
}

impl Elements {
    /// Elements of any bits, but for bool, which has zeros and ones.
    pub fn random(dtype: DType, shape: &[i64], seed: u64) -> Self {
        let mut random = Random::new(seed + 1);
        let mut all = Self::zeroed(dtype, shape);
        let mask = if dtype == DType::Bool { 1 } else { u8::MAX };
        all.memory.iter_mut().for_each(|byte| *byte = random.next().to_le_bytes()[0] & mask);
        all
    }

    pub fn zeroed(dtype: DType, shape: &[i64]) -> Self {
        let count = usize::try_from(shape.iter().product::<i64>()).unwrap();
        let memory = vec![0; count * dtype.size() + 8];
        let start = memory.as_ptr().align_offset(8);
        Self { dtype, shape: shape.to_vec(), memory, start }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.memory.len() - 8 + self.start]
    }

    pub fn tensor(&self) -> Tensor<'_> {
        Tensor::from_bytes(self.dtype, self.bytes(), &self.shape).unwrap()
    }

    pub fn tensor_mut(&mut self) -> TensorMut<'_> {
        let end = self.memory.len() - 8 + self.start;
        let bytes = &mut self.memory[self.start..end];
        TensorMut::from_bytes(self.dtype, bytes, &self.shape).unwrap()
    }
}
