//! Sums of GPU kernels, interpreted, against those of this processor.

use super::{Isa, Pass, Random, SumOrder, Traffic};
use crate::kernel::interpreted::{CHUNK, Elements, Gpu, Job, Kernels, mode};
use crate::tensor::DType;

/// Every dtype whose values are added.
fn summed() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|dtype| !dtype.is_opaque())
}

/// The sum of inputs on this processor.
fn sum(dtype: DType, inputs: &[Elements], count: usize) -> Elements {
    let mut out = Elements::zeroed(dtype, count);
    let sources: Vec<_> = inputs.iter().map(Elements::as_ptr).collect();
    let outs = &[out.as_mut_ptr()][..];
    let traffic = Traffic::Cached;
    Isa::choose("auto").unwrap().sum_planned(&Pass {
        dtype,
        outs,
        inputs: &sources,
        count,
        traffic,
        order: SumOrder::Linear,
        divisor: None,
    });
    out
}

/// One launch for several arrays, each with other numbers of elements and other alignments.
#[test]
fn sums_of_gpu_kernels_have_the_bits_of_this_processor() {
    let (mut kernels, mut random) = (Kernels::default(), Random::new(3));
    for dtype in summed() {
        for (case, inputs) in [1, 2, 3, 4, 5, 8].into_iter().enumerate() {
            let mut gpu = Gpu::default();
            let (mut jobs, mut expected) = (Vec::new(), Vec::new());
            for (count, shift, outs) in
                [(CHUNK + 37, 0, 1), (1, 1, 2), (0, 0, 1), (517, case % 4, 3)]
            {
                let values: Vec<_> =
                    (0..inputs).map(|_| Elements::random(&mut random, dtype, count)).collect();
                let place = |it: &Elements, gpu: &mut Gpu| gpu.put(it, shift);
                let sources = values.iter().map(|it| place(it, &mut gpu).address).collect();
                let empty = Elements::zeroed(dtype, count);
                let places: Vec<_> = (0..outs).map(|out| gpu.put(&empty, shift * out)).collect();
                let addresses = places.iter().map(|it| it.address).collect();
                jobs.push(Job { count, inputs: sources, outs: addresses, ..Job::default() });
                expected.push((sum(dtype, &values, count), places));
            }
            let kernel = format!("assign_{}", mode(dtype));
            gpu.launch(&mut kernels, &kernel, &jobs, CHUNK, random.next());
            for (sum, places) in &expected {
                for &place in places {
                    let difference = gpu.take(place).difference(sum);
                    assert_eq!(difference, None, "{kernel}, {inputs} inputs of {}", sum.count);
                }
            }
        }
    }
}

#[test]
fn an_out_of_a_gpu_kernel_may_be_an_input() {
    let (mut kernels, mut random) = (Kernels::default(), Random::new(5));
    let values = [0; 2].map(|_| Elements::random(&mut random, DType::F32, 1001));
    let mut gpu = Gpu::default();
    let places = values.each_ref().map(|it| gpu.put(it, 0));
    let inputs = places.map(|it| it.address).to_vec();
    let outs = vec![places[1].address];
    let job = Job { count: 1001, inputs, outs, ..Job::default() };
    gpu.launch(&mut kernels, "assign_f32", &[job], CHUNK, 11);
    assert_eq!(gpu.take(places[1]).difference(&sum(DType::F32, &values, 1001)), None);
}

/// Offsets of the elements, in row-major order, and how many elements the array needs. The first
/// element is in front of the others where strides are positive, else behind.
fn offsets(shape: &[usize], strides: &[i64]) -> (Vec<usize>, usize, usize) {
    let mut all = vec![0];
    for (&extent, &stride) in shape.iter().zip(strides) {
        let next = |from: i64| (0..extent as i64).map(move |index| from + index * stride);
        all = all.into_iter().flat_map(next).collect();
    }
    let (low, high) = (*all.iter().min().unwrap(), *all.iter().max().unwrap());
    let offsets = all.iter().map(|it| (it - low) as usize).collect();
    (offsets, (high - low) as usize + 1, -low as usize)
}

/// An array whose elements, in row-major order, have some bits; the gaps are zero.
fn spread(elements: &Elements, offsets: &[usize], length: usize) -> Elements {
    let mut bits = vec![0; length];
    offsets.iter().zip(elements.bits()).for_each(|(&offset, it)| bits[offset] = it);
    Elements::new(elements.dtype, bits)
}

/// Shapes with the strides of source and destination.
const LAYOUTS: [(&[usize], &[i64], &[i64]); 5] = [
    (&[4500], &[1], &[1]),
    (&[301], &[-3], &[2]),
    (&[17, 11], &[1, 17], &[11, 1]),
    (&[5, 7, 9], &[63, -9, 1], &[1, 45, -5]),
    (&[2, 3, 2, 4, 2, 3], &[0, 48, 24, -6, 3, 1], &[200, 60, 30, 7, 3, 1]),
];

#[test]
fn copies_of_gpu_kernels_have_the_bits_of_this_processor() {
    let (mut kernels, mut random) = (Kernels::default(), Random::new(7));
    let pairs = summed().flat_map(|from| summed().map(move |to| (from, to)));
    for (from, to) in pairs.filter(|(from, to)| from == to || from.is_float() && to.is_float()) {
        let kernel = if from == to {
            format!("copy_{}", 8 * from.size())
        } else {
            format!("copy_{}_{}", mode(from), mode(to))
        };
        for (shape, source, destination) in LAYOUTS {
            let count = shape.iter().product();
            let (reads, length, origin) = offsets(shape, source);
            let array = Elements::random(&mut random, from, length);
            let bits: Vec<_> = array.bits().collect();
            let dense = Elements::new(from, reads.iter().map(|&offset| bits[offset]));
            let mut expected = Elements::zeroed(to, count);
            // SAFETY: both arrays have so many elements, and overlap nothing.
            unsafe {
                let out = (to, expected.as_mut_ptr());
                Isa::choose("auto").unwrap().convert(out, (from, dense.as_ptr()), count);
            }
            let (writes, length, first) = offsets(shape, destination);
            let mut gpu = Gpu::default();
            let input = gpu.put(&array, 0).address + (origin * from.size()) as u64;
            let place = gpu.put(&Elements::zeroed(to, length), 1);
            let dimensions = shape.iter().zip(source).zip(destination).rev();
            let extents = dimensions.flat_map(|((&it, &a), &b)| [it as u64, a as u64, b as u64]);
            let job = Job {
                count,
                inputs: vec![input],
                outs: vec![place.address + (first * to.size()) as u64],
                extents: [shape.len() as u64].into_iter().chain(extents).collect(),
                ..Job::default()
            };
            gpu.launch(&mut kernels, &kernel, &[job], CHUNK, random.next());
            let difference = gpu.take(place).difference(&spread(&expected, &writes, length));
            assert_eq!(difference, None, "{kernel}, shape {shape:?}");
        }
    }
}
