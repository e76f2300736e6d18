//! Arrays with equal content in the memory of a GPU and in that of the host.

use kvstore::{DType, DeviceSlice};

use super::gpu;
use super::store::{CPU, CUDA, RawTensor};

/// Where an array is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Host,
    /// The first GPU.
    Gpu,
    /// Another one, by its number.
    Other(i32),
}

impl Place {
    /// The number of the GPU.
    fn device(self) -> Option<i32> {
        match self {
            Self::Host => None,
            Self::Gpu => Some(0),
            Self::Other(device) => Some(device),
        }
    }
}

/// An array, row-major or with strides.
pub struct Array {
    pub dtype: DType,
    pub place: Place,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    /// The first byte of the memory.
    address: u64,
    /// Of an array in host memory.
    words: Vec<u64>,
    bytes: usize,
    /// Offset of the element with all indices 0, in elements.
    origin: usize,
    /// The stream that writes and reads it.
    pub stream: u64,
}

impl Array {
    /// An array of some elements; the gaps between strides are 0xEE.
    pub fn new(place: Place, dtype: DType, shape: &[i64], strides: Option<&[i64]>) -> Self {
        Self::on(1, place, dtype, shape, strides)
    }

    /// An array that a stream writes and reads.
    pub fn on(
        stream: u64,
        place: Place,
        dtype: DType,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> Self {
        let reach = |sign: i64| -> i64 {
            let strides = strides.unwrap_or(&[]);
            let ends = shape.iter().zip(strides).map(|(&extent, &it)| (extent - 1) * it);
            ends.filter(|end| end.signum() == sign).sum::<i64>().abs()
        };
        let count = shape.iter().product::<i64>() as usize;
        let elements = match strides {
            Some(_) if count > 0 => (reach(1) + reach(-1)) as usize + 1,
            _ => count,
        };
        let bytes = elements * dtype.size();
        let mut array = Self {
            dtype,
            place,
            shape: shape.to_vec(),
            strides: strides.map(<[i64]>::to_vec),
            address: 0,
            words: vec![0xEEEE_EEEE_EEEE_EEEE; bytes.div_ceil(8).max(1)],
            bytes,
            origin: reach(-1) as usize,
            stream,
        };
        if let Some(device) = place.device() {
            array.address = gpu::on(device, || gpu::memory(bytes));
            array.write(&vec![0xEE; bytes]);
        } else {
            array.address = array.words.as_mut_ptr().expose_provenance() as u64;
        }
        array
    }

    /// A row-major array.
    pub fn plain(place: Place, dtype: DType, shape: &[i64]) -> Self {
        Self::new(place, dtype, shape, None)
    }

    pub fn with(mut self, elements: &[u64]) -> Self {
        self.set(elements);
        self
    }

    /// Offsets of the elements from the beginning of the memory, in row-major order.
    fn offsets(&self) -> Vec<usize> {
        let plain = self.plain_strides();
        let mut all = vec![self.origin as i64];
        for (&extent, &stride) in self.shape.iter().zip(self.strides.as_ref().unwrap_or(&plain)) {
            all = all.iter().flat_map(|at| (0..extent).map(move |i| at + i * stride)).collect();
        }
        all.into_iter().map(|at| at as usize).collect()
    }

    fn plain_strides(&self) -> Vec<i64> {
        (0..self.shape.len()).map(|at| self.shape[at + 1..].iter().product()).collect()
    }

    fn memory(&self) -> Vec<u8> {
        if let Some(device) = self.place.device() {
            return gpu::on(device, || gpu::read(self.address, self.bytes, self.stream));
        }
        self.words.iter().flat_map(|word| word.to_le_bytes()).take(self.bytes).collect()
    }

    /// Sets the elements, as bits in row-major order.
    pub fn set(&mut self, elements: &[u64]) {
        let size = self.dtype.size();
        let mut bytes = if self.strides.is_some() { self.memory() } else { vec![0; self.bytes] };
        let offsets = self.offsets();
        assert_eq!(offsets.len(), elements.len());
        for (offset, element) in offsets.into_iter().zip(elements) {
            bytes[offset * size..][..size].copy_from_slice(&wide(*element)[..size]);
        }
        if self.place == Place::Host {
            bytes.resize(8 * self.words.len(), 0);
            let words = bytes.chunks_exact(8).map(|it| u64::from_le_bytes(it.try_into().unwrap()));
            self.words.iter_mut().zip(words).for_each(|(to, word)| *to = word);
        } else {
            self.write(&bytes);
        }
    }

    /// Writes to the GPU, in stream order.
    fn write(&self, bytes: &[u8]) {
        let device = self.place.device().unwrap();
        gpu::on(device, || gpu::write(self.address, bytes, self.stream));
    }

    /// Sets plain elements in stream order, without a wait.
    pub fn overwrite(&mut self, element: u64) {
        let (size, bytes) = (self.dtype.size(), wide(element));
        if self.place != Place::Host {
            self.write(&bytes[..size].repeat(self.bytes / size));
        }
    }

    /// The elements, as bits in row-major order; behind what its stream has.
    pub fn get(&self) -> Vec<u64> {
        let (bytes, size) = (self.memory(), self.dtype.size());
        let mut gaps = vec![true; bytes.len() / size.max(1)];
        let elements = self.offsets().into_iter().map(|offset| {
            gaps[offset] = false;
            let mut word = [0; 16];
            word[..size].copy_from_slice(&bytes[offset * size..][..size]);
            let element = u128::from_le_bytes(word) as u64;
            assert_eq!(word[..size], wide(element)[..size], "the parts of an element");
            element
        });
        let elements = elements.collect();
        let is_untouched = |(at, gap): (usize, &bool)| {
            !gap || bytes[at * size..][..size].iter().all(|byte| *byte == 0xEE)
        };
        assert!(gaps.iter().enumerate().all(is_untouched), "written beside the elements");
        elements
    }

    /// The array for the Rust interface; plain, and in the memory of a GPU.
    #[allow(unsafe_code, reason = "memory of a GPU")]
    pub fn slice(&self) -> DeviceSlice {
        assert!(self.strides.is_none());
        let start = std::ptr::without_provenance_mut(self.address as usize);
        let device = self.place.device().unwrap() as u16;
        let count = self.shape.iter().product::<i64>() as usize;
        // SAFETY: memory of this GPU; the tests free it behind all that uses it.
        unsafe { DeviceSlice::new(start, count, self.dtype, device) }.unwrap()
    }

    pub fn tensor(&self) -> RawTensor {
        RawTensor {
            data: self.address,
            device_type: if self.place == Place::Host { CPU } else { CUDA },
            device_id: self.place.device().unwrap_or(0),
            ndim: self.shape.len() as i32,
            dtype: self.dtype.code(),
            shape: self.shape.as_ptr(),
            strides: self.strides.as_ref().map_or(std::ptr::null(), Vec::as_ptr),
            byte_offset: (self.origin * self.dtype.size()) as u64,
        }
    }

    /// Frees memory of the GPU behind what its stream has.
    pub fn free(self) {
        if let Some(device) = self.place.device() {
            gpu::on(device, || gpu::stream_wait(self.stream));
            gpu::free(self.address);
        }
    }
}

/// The bytes of an element that is given as bits. One of 16 bytes has two parts, which differ.
fn wide(element: u64) -> [u8; 16] {
    (u128::from(element) | u128::from(!element) << 64).to_le_bytes()
}

/// A random number (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Elements of a dtype as bits: of usual size, zeros of both signs, subnormal ones.
    pub fn elements(&mut self, dtype: DType, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.element(dtype)).collect()
    }

    fn element(&mut self, dtype: DType) -> u64 {
        let any = self.next();
        let sign = 1 << (8 * dtype.size().min(8) - 1);
        let number = (any >> 40) as f64 / f64::from(1 << 22) - 2.0;
        match (self.below(16), dtype) {
            (0, _) => 0,
            (1, _) => sign,
            (2, DType::F32) => any & 0x807F_FFFF,
            (2, DType::F64) => any & 0x800F_FFFF_FFFF_FFFF,
            (2, DType::F16) => any & 0x83FF,
            (2, DType::BF16) => any & 0x807F,
            (_, DType::F32) => u64::from((number as f32).to_bits()),
            (_, DType::F64) => number.to_bits(),
            (_, DType::F16) => kvstore::f16::from_f64(number).to_bits().into(),
            (_, DType::BF16) => kvstore::bf16::from_f64(number).to_bits().into(),
            _ if dtype.size() >= 8 => any,
            _ => any & ((1 << (8 * dtype.size())) - 1),
        }
    }
}
