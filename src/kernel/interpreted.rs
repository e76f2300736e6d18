//! GPU kernels for tests: the PTX of `src/device/ptx`, run by the interpreter of `tests/cuda`.

use std::collections::{HashMap, HashSet};
use std::fs;

use cuda_stand_in::ptx::{HostMemory, Launch, Module, Watched};
use half::{bf16, f16};
use kvstore_protocol::testing::Random;

use crate::tensor::DType;

/// As in `kernels/job.cuh`.
const THREADS: u32 = 256;
pub(crate) const CHUNK: usize = 4096;

/// Bytes on either side of an array that no kernel may change, and their content.
const MARGIN: usize = 64;
const FILL: u8 = 0xA5;

/// The name of a dtype in names of kernels.
pub(crate) fn mode(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        integer => ["i8", "i16", "i32", "i64"][integer.size().ilog2() as usize],
    }
}

/// Elements of one dtype, aligned for all of them.
#[derive(Clone, Debug)]
pub(crate) struct Elements {
    pub(crate) dtype: DType,
    pub(crate) count: usize,
    words: Vec<u64>,
}

impl Elements {
    pub(crate) fn new(dtype: DType, bits: impl IntoIterator<Item = u64>) -> Self {
        let bytes: Vec<u8> = bits
            .into_iter()
            .flat_map(|it| it.to_le_bytes().into_iter().take(dtype.size()))
            .collect();
        Self::of_bytes(dtype, &bytes)
    }

    pub(crate) fn zeroed(dtype: DType, count: usize) -> Self {
        Self::new(dtype, vec![0; count])
    }

    fn of_bytes(dtype: DType, bytes: &[u8]) -> Self {
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        Self {
            dtype,
            count: bytes.len() / dtype.size(),
            words: bytes.chunks(8).map(word).collect(),
        }
    }

    /// Numbers that sums and rules find hard: zeros, subnormals, infinities, NaNs, any bits.
    pub(crate) fn random(random: &mut Random, dtype: DType, count: usize) -> Self {
        Self::new(dtype, (0..count).map(|_| random_bits(random, dtype)))
    }

    fn bytes(&self) -> Vec<u8> {
        let bytes = self.words.iter().flat_map(|it| it.to_le_bytes());
        bytes.take(self.count * self.dtype.size()).collect()
    }

    pub(crate) fn bits(&self) -> impl Iterator<Item = u64> {
        let (size, mut bytes) = (self.dtype.size(), self.bytes());
        bytes.resize(bytes.len().next_multiple_of(size), 0);
        (0..self.count).map(move |index| {
            let bytes = &bytes[index * size..][..size];
            bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
        })
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.words.as_ptr().cast()
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }

    /// The first element whose bits differ; any NaN equals any NaN.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        assert_eq!((self.dtype, self.count), (other.dtype, other.count));
        let is_same = |a, b| a == b || is_nan(self.dtype, a) && is_nan(self.dtype, b);
        let mut pairs = self.bits().zip(other.bits()).enumerate();
        let (index, (a, b)) = pairs.find(|&(_, (a, b))| !is_same(a, b))?;
        Some(format!("element {index} is {a:#x} instead of {b:#x}"))
    }
}

fn is_nan(dtype: DType, bits: u64) -> bool {
    let sign_and_infinity = match dtype {
        DType::F32 => (31, 0x7F80_0000),
        DType::F64 => (63, 0x7FF0_0000_0000_0000),
        DType::F16 => (15, 0x7C00),
        DType::BF16 => (15, 0x7F80),
        _ => return false,
    };
    bits & !(1 << sign_and_infinity.0) > sign_and_infinity.1
}

#[allow(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
fn random_bits(random: &mut Random, dtype: DType) -> u64 {
    let any = random.next();
    let sign = 1 << (8 * dtype.size() - 1);
    let number = {
        // At most 2 in magnitude, in steps that are no powers of two.
        let mantissa = f64::from(random.next() as u32) / f64::from(1 << 30) - 2.0;
        mantissa * [1e-3, 1e-2, 0.1, 1.0, 10.0, 1e2, 1e3][random.index(7)]
    };
    match (random.below(16), dtype) {
        (0, _) => any,
        (1, _) => 0,
        (2, _) => sign,
        // Subnormal.
        (3, DType::F64) => any & 0x800F_FFFF_FFFF_FFFF,
        (3, DType::F32) => any & 0x807F_FFFF,
        (3, DType::F16) => any & 0x83FF,
        (3, DType::BF16) => any & 0x807F,
        (_, DType::F64) => number.to_bits(),
        (_, DType::F32) => (number as f32).to_bits().into(),
        (_, DType::F16) => f16::from_f64(number).to_bits().into(),
        (_, DType::BF16) => bf16::from_f64(number).to_bits().into(),
        _ => any,
    }
}

/// An array in the memory of the interpreter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    start: u64,
    pub(crate) address: u64,
    dtype: DType,
    count: usize,
}

/// A job, as in `kernels/job.cuh`.
#[derive(Clone, Default)]
pub(crate) struct Job {
    pub(crate) count: usize,
    /// Elements, or whatever else a chunk consists of, if they are not `count`.
    pub(crate) units: Option<usize>,
    pub(crate) value: u64,
    pub(crate) states: [u64; 3],
    pub(crate) inputs: Vec<u64>,
    pub(crate) outs: Vec<u64>,
    pub(crate) extents: Vec<u64>,
    pub(crate) constants: Vec<f64>,
}

/// Kernels that have been parsed.
#[derive(Default)]
pub(crate) struct Kernels(HashMap<String, Module>);

impl Kernels {
    /// The names of kernels that have run.
    pub(crate) fn names(&self) -> HashSet<&String> {
        self.0.keys().collect()
    }

    fn get(&mut self, name: &str) -> &Module {
        self.0.entry(name.into()).or_insert_with(|| {
            let path = format!("{}/src/device/ptx/{name}.ptx", env!("CARGO_MANIFEST_DIR"));
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            Module::parse(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
        })
    }
}

/// The memory of a GPU.
#[derive(Default)]
pub(crate) struct Gpu {
    memory: HostMemory,
}

impl Gpu {
    /// Copies elements into memory, `shift` elements behind an address that is aligned for all.
    pub(crate) fn put(&mut self, elements: &Elements, shift: usize) -> Place {
        let Elements { dtype, count, .. } = *elements;
        let mut bytes = vec![FILL; MARGIN + shift * dtype.size()];
        let skip = bytes.len() as u64;
        bytes.extend(elements.bytes());
        bytes.extend([FILL; MARGIN]);
        let start = self.memory.add(bytes);
        Place { start, address: start + skip, dtype, count }
    }

    /// The elements at a place.
    pub(crate) fn take(&self, place: Place) -> Elements {
        let bytes = self.memory.bytes(place.start);
        let skip = usize::try_from(place.address - place.start).unwrap();
        let end = skip + place.count * place.dtype.size();
        let margins = bytes[..skip].iter().chain(&bytes[end..]);
        assert!(margins.into_iter().all(|&it| it == FILL), "a kernel wrote beside an array");
        Elements::of_bytes(place.dtype, &bytes[skip..end])
    }

    /// Runs a kernel on all chunks of some jobs, in an order that the seed draws; returns the
    /// constants, which a kernel may change.
    pub(crate) fn launch(
        &mut self,
        kernels: &mut Kernels,
        name: &str,
        jobs: &[Job],
        chunk: usize,
        seed: u64,
    ) -> Vec<f64> {
        let (mut table, mut addresses) = (Vec::new(), Vec::<u64>::new());
        let (mut constants, mut blocks) = (Vec::<f64>::new(), Vec::<u32>::new());
        let small = |number: usize| u32::try_from(number).unwrap();
        for (index, job) in jobs.iter().enumerate() {
            for number in [job.count as u64, job.value].iter().chain(&job.states) {
                table.extend(number.to_le_bytes());
            }
            let places = [addresses.len(), constants.len()];
            for number in [job.inputs.len(), job.outs.len()].into_iter().chain(places) {
                table.extend(small(number).to_le_bytes());
            }
            addresses.extend(job.inputs.iter().chain(&job.outs).chain(&job.extents));
            constants.extend(&job.constants);
            for chunk in 0..job.units.unwrap_or(job.count).div_ceil(chunk) {
                blocks.extend([small(index), small(chunk)]);
            }
        }
        let grid = [small(blocks.len() / 2), 1, 1];
        let numbers = addresses.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<_>>();
        let constants = constants.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<_>>();
        let blocks = blocks.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<_>>();
        let arguments = [table, numbers, constants, blocks].map(|bytes| self.memory.add(bytes));
        let kernel = kernels.get(name).kernel(name).expect("a file has the kernel of its name");
        let launch = Launch { grid, block: [THREADS, 1, 1], order: seed };
        kernel
            .run(&launch, &arguments, &mut Watched::new(&mut self.memory))
            .unwrap_or_else(|fault| panic!("{name}: {fault}"));
        let (constants, _) = self.memory.bytes(arguments[2]).as_chunks::<8>();
        constants.iter().map(|it| f64::from_le_bytes(*it)).collect()
    }
}
