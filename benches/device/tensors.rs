//! Arrays in the memory of the GPU, and lists of keys with their arrays.

use kvstore::DType;

use crate::gpu;
use crate::store::{CUDA, RawTensor, Store};

/// Shapes of keys, as `benches/local/shapes.rs` makes them.
pub struct Keys {
    pub shapes: Vec<Vec<i64>>,
}

impl Keys {
    pub fn of_shapes(_: &'static str, shapes: Vec<Vec<i64>>) -> Self {
        Self { shapes }
    }

    /// So many keys of a number of elements.
    pub fn equal(count: usize, elements: usize) -> Self {
        Self { shapes: vec![vec![elements as i64]; count] }
    }

    /// The same keys with fewer rows.
    pub fn scaled(mut self, scale: usize) -> Self {
        for shape in &mut self.shapes {
            shape[0] = (shape[0] / scale as i64).max(1);
        }
        self
    }

    pub fn elements(&self) -> usize {
        self.shapes.iter().map(|shape| shape.iter().product::<i64>() as usize).sum()
    }
}

/// An array whose memory and shape are kept until the process ends.
pub struct Tensor {
    raw: RawTensor,
}

impl Tensor {
    /// An array on the GPU; each byte is 0x3C: 0.0115 in f32 and bf16.
    pub fn on_gpu(dtype: DType, shape: &[i64]) -> Self {
        let bytes = shape.iter().product::<i64>() as usize * dtype.size();
        let data = gpu::memory(bytes);
        assert_eq!(gpu::fill(data, 0x3C, bytes.max(1), 1), 0);
        Self::at(data, CUDA, dtype, shape)
    }

    pub fn at(data: u64, kind: i32, dtype: DType, shape: &[i64]) -> Self {
        let shape: &[i64] = Box::leak(shape.into());
        let raw = RawTensor {
            data,
            device_type: kind,
            device_id: 0,
            ndim: shape.len() as i32,
            dtype: dtype.code(),
            shape: shape.as_ptr(),
            strides: std::ptr::null(),
            byte_offset: 0,
        };
        Self { raw }
    }

    pub fn raw(&self) -> RawTensor {
        self.raw
    }

    pub fn data(&self) -> u64 {
        self.raw.data
    }
}

/// A store with keys on the GPU, and the lists of a `pushpull` of some values and one out each.
pub struct Workload {
    pub store: Store,
    keys: Vec<u64>,
    values: Vec<RawTensor>,
    out_keys: Vec<u64>,
    outs: Vec<RawTensor>,
}

impl Workload {
    pub fn new(dtype: DType, keys: &Keys, values: usize, rule: Option<(&str, &str)>) -> Self {
        let store = Store::new("device");
        let mut made = Self {
            store,
            keys: Vec::new(),
            values: Vec::new(),
            out_keys: Vec::new(),
            outs: Vec::new(),
        };
        for (key, shape) in (0..).zip(&keys.shapes) {
            let arrays: Vec<_> = (0..=values).map(|_| Tensor::on_gpu(dtype, shape)).collect();
            for array in &arrays[..values] {
                made.keys.push(key);
                made.values.push(array.raw());
            }
            made.out_keys.push(key);
            made.outs.push(arrays[values].raw());
        }
        gpu::stream_wait(1);
        made.store.init_raw(&made.out_keys, &made.outs).unwrap();
        if let Some((name, params)) = rule {
            made.store.set_optimizer(name, params).unwrap();
        }
        made
    }

    /// Queues a call.
    pub fn pushpull(&self) {
        let (values, outs) = ((&*self.keys, &*self.values), (&*self.out_keys, &*self.outs));
        self.store.pushpull_raw(values, outs).unwrap();
    }
}
