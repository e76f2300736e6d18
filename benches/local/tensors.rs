//! Lists of keys and tensors, with the memory behind them.

use std::any::Any;
use std::ptr::null_mut;

use half::{bf16, f16};
use kvstore_protocol::testing::Random;

use crate::api::Tensor;
use crate::memory::Array;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DType {
    F32,
    F16,
    Bf16,
}

impl DType {
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    pub fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// Its number in the C interface.
    pub fn code(self) -> u32 {
        match self {
            Self::F32 => 0x0001_2002,
            Self::F16 => 0x0001_1002,
            Self::Bf16 => 0x0001_1004,
        }
    }
}

/// Keys and their shapes, in the order in which calls list them.
#[derive(Clone)]
pub struct Keys {
    pub name: String,
    numbers: Vec<u64>,
    shapes: Vec<Vec<i64>>,
}

impl Keys {
    pub fn one(len: usize) -> Self {
        Self::of_shapes(&size_name(len), vec![vec![len as i64]])
    }

    pub fn many(count: usize, len: usize) -> Self {
        let name = format!("{} x {}", size_name(count), size_name(len));
        Self::of_shapes(&name, vec![vec![len as i64]; count])
    }

    pub fn of_shapes(name: &str, shapes: Vec<Vec<i64>>) -> Self {
        Self { name: name.to_owned(), numbers: (0..shapes.len() as u64).collect(), shapes }
    }

    /// The same in an order without pattern, always the same one.
    pub fn shuffled(mut self) -> Self {
        let mut pairs: Vec<_> = self.numbers.into_iter().zip(self.shapes).collect();
        Random::new(1).shuffle(&mut pairs);
        (self.numbers, self.shapes) = pairs.into_iter().unzip();
        self.name.push_str(", shuffled");
        self
    }

    pub fn sorted(&self) -> Self {
        let mut pairs: Vec<_> = self.numbers.iter().zip(&self.shapes).collect();
        pairs.sort();
        let (numbers, shapes) = pairs.into_iter().map(|(key, shape)| (*key, shape.clone())).unzip();
        Self { name: self.name.clone(), numbers, shapes }
    }

    pub fn count(&self) -> usize {
        self.numbers.len()
    }

    pub fn shapes(&self) -> &[Vec<i64>] {
        &self.shapes
    }

    pub fn elements(&self) -> usize {
        self.shapes.iter().map(|shape| elements(shape)).sum()
    }
}

/// (key, tensor) pairs: `copies` tensors for each key, side by side in the list. In memory, each
/// copy of all keys is one array, as a device's gradients are.
pub struct List {
    keys: Vec<u64>,
    tensors: Vec<Tensor>,
    _dims: Vec<i64>,
    _memory: Vec<Box<dyn Any>>,
}

impl List {
    /// The arrays start `offset` bytes past a multiple of 64.
    pub fn new(dtype: DType, offset: usize, keys: &Keys, copies: usize) -> Self {
        let len = keys.elements();
        let arrays = (0..copies).map(|_| match dtype {
            DType::F32 => array(offset, len, number),
            DType::F16 => array(offset, len, |i| f16::from_f32(number(i))),
            DType::Bf16 => array(offset, len, |i| bf16::from_f32(number(i))),
        });
        let (starts, memory): (Vec<*mut u8>, Vec<Box<dyn Any>>) = arrays.unzip();
        let mut dims = keys.shapes.concat();
        let (mut numbers, mut tensors) = (Vec::new(), Vec::new());
        let (mut place, mut rest) = (0, dims.as_mut_slice());
        for (key, shape) in keys.numbers.iter().zip(&keys.shapes) {
            let (own, others) = rest.split_at_mut(shape.len());
            for start in &starts {
                numbers.push(*key);
                tensors.push(tensor(start.wrapping_add(place), dtype, own));
            }
            place += elements(shape) * dtype.bytes();
            rest = others;
        }
        Self { keys: numbers, tensors, _dims: dims, _memory: memory }
    }

    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// The first numbers of the last tensor of a float32 list.
    pub fn last_numbers(&self, count: usize) -> Vec<f32> {
        let last = self.tensors.last().map_or(std::ptr::null(), |tensor| tensor.data.cast::<f32>());
        // SAFETY: the caller asks for no more numbers than the tensor has, and nobody writes them.
        unsafe { std::slice::from_raw_parts(last, count) }.to_vec()
    }

    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }
}

/// Small whole numbers: exact in every type, zero among them.
pub fn number(index: usize) -> f32 {
    (index % 251) as f32 - 125.0
}

fn array<T: Copy + 'static>(
    offset: usize,
    len: usize,
    element: impl Fn(usize) -> T,
) -> (*mut u8, Box<dyn Any>) {
    let mut array = Array::new(offset, len, element);
    (array.get_mut().as_mut_ptr().cast(), Box::new(array))
}

fn tensor(data: *mut u8, dtype: DType, shape: &mut [i64]) -> Tensor {
    Tensor {
        data: data.cast(),
        device: [1, 0],
        ndim: shape.len() as i32,
        dtype: dtype.code(),
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    }
}

fn elements(shape: &[i64]) -> usize {
    shape.iter().product::<i64>() as usize
}

/// 4096 as 4K, 100000 as 100,000.
pub fn size_name(len: usize) -> String {
    match len {
        _ if len >= 1 << 20 && len.is_multiple_of(1 << 20) => format!("{}M", len >> 20),
        _ if len >= 1 << 10 && len.is_multiple_of(1 << 10) => format!("{}K", len >> 10),
        _ if len >= 1000 && len.is_multiple_of(1000) => format!("{},000", len / 1000),
        _ => len.to_string(),
    }
}
