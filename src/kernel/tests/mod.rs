//! Every build of the kernels against scalar loops and against exact arithmetic.
#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "exact bits are compared, and small numbers converted"
)]

mod device;
mod divided;
mod measure;
mod rule;

use half::{bf16, f16};
use kvstore_checksum::crc64;

use super::{DigestScope, Isa, PartialSums, Pass, PassDigests, SumOrder, Traffic};
use crate::tensor::{DType, Element};
use kvstore_protocol::testing::{Random, tree_of};

const INPUTS: &[usize] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33];
const SIZES: &[usize] = &[0, 1, 7, 8, 15, 63, 64, 65, 1000, 2047, 2048, 2049, 4097];

/// Slow tools run a part of the work.
fn is_small() -> bool {
    cfg!(miri) || std::env::var("KV_TEST_SCALE").is_ok_and(|scale| scale == "small")
}

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

/// The properties of an element type that the tests need.
trait Number: Element + Default {
    /// A value worth testing with.
    fn random(random: &mut Random) -> Self;
    /// The sum as the documents define it.
    fn sum(values: impl Iterator<Item = Self>) -> Self;
    /// The sum of the tree over leaves at positions.
    fn tree(leaves: &[(u128, Self)]) -> Self;
    fn bits(self) -> u64;
    fn is_nan(self) -> bool;

    fn is_same(self, other: Self) -> bool {
        self.bits() == other.bits() || self.is_nan() && other.is_nan()
    }
}

macro_rules! integers {
    ($($int:ty)+) => {$(impl Number for $int {
        #[allow(clippy::cast_possible_truncation, reason = "any bits will do")]
        fn random(random: &mut Random) -> Self { random.next() as $int }
        fn sum(values: impl Iterator<Item = Self>) -> Self {
            values.reduce(<$int>::wrapping_add).unwrap()
        }
        fn tree(leaves: &[(u128, Self)]) -> Self { tree_of(leaves, <$int>::wrapping_add) }
        #[allow(clippy::cast_sign_loss, clippy::cast_lossless, reason = "only compared")]
        fn bits(self) -> u64 { self as u64 }
        fn is_nan(self) -> bool { false }
    })+};
}

integers!(i8 u8 i16 u16 i32 u32 i64 u64);

/// One in eight is special; the others are close enough to each other that sums round.
macro_rules! floats {
    ($($float:ty, $mantissa:literal, $bias:literal, $wide:ty);+) => {$(impl Number for $float {
        #[allow(clippy::cast_possible_truncation, reason = "any bits will do")]
        fn random(random: &mut Random) -> Self {
            let bits = random.next();
            if bits % 8 == 0 {
                let tiny = <$float>::from_bits(1);
                let large_denormal = <$float>::from_bits((1 << $mantissa) - 1);
                let signalling = <$float>::from_bits(<$float>::INFINITY.to_bits() | 1);
                return random.pick(&[
                    <$float>::INFINITY, <$float>::NEG_INFINITY, <$float>::NAN, signalling, tiny,
                    -tiny, large_denormal, -large_denormal, <$float>::MAX, <$float>::MIN,
                    <$float>::MIN_POSITIVE, <$float>::from_bits(0), -<$float>::from_bits(0),
                ]);
            }
            let exponent = $bias - 4 + (bits >> 8) % 9;
            let sign = (bits >> 4 & 1) << (<$float>::INFINITY.to_bits().count_ones() + $mantissa);
            let mantissa = random.next() & ((1 << $mantissa) - 1);
            <$float>::from_bits((sign | exponent << $mantissa | mantissa) as _)
        }
        fn sum(values: impl Iterator<Item = Self>) -> Self {
            let mut values = values.peekable();
            let first = values.next().unwrap();
            if values.peek().is_none() {
                return first;
            }
            narrow(values.fold(<$wide>::from(first), |sum, value| sum + <$wide>::from(value)))
        }
        fn tree(leaves: &[(u128, Self)]) -> Self {
            if let [(_, only)] = leaves {
                return *only;
            }
            let wide: Vec<_> = leaves.iter().map(|&(at, leaf)| (at, <$wide>::from(leaf))).collect();
            narrow(tree_of(&wide, |left, right| left + right))
        }
        fn bits(self) -> u64 { self.to_bits().into() }
        fn is_nan(self) -> bool { <$float>::is_nan(self) }
    })+};
}

/// The order of a sum in tests.
#[derive(Clone)]
enum Ordered {
    Linear,
    /// A tree without missing leaves.
    Tree,
    /// A tree with leaves at these positions.
    At(Vec<u128>),
}

impl Ordered {
    fn sum<T: Number>(&self, values: impl ExactSizeIterator<Item = T>) -> T {
        match self {
            Self::Linear => T::sum(values),
            Self::Tree => T::tree(&(0..).zip(values).collect::<Vec<_>>()),
            Self::At(at) => T::tree(&at.iter().copied().zip(values).collect::<Vec<_>>()),
        }
    }

    /// Calls `work` with the order as kernels have it.
    fn with(&self, work: impl FnOnce(SumOrder<'_>)) {
        let mut joins = Vec::new();
        work(match self {
            Self::Linear => SumOrder::Linear,
            Self::Tree => SumOrder::Tree,
            Self::At(at) => {
                PartialSums::default().list_joins(at.iter().copied(), |count| joins.push(count));
                SumOrder::Joins(&joins)
            }
        });
    }

    /// All orders of so many values, of which one has gaps of any length.
    fn all(random: &mut Random, values: usize) -> [Self; 3] {
        let mut at = 0u128;
        let positions = (0..values).map(|_| {
            at += 1 + u128::from(random.below(5) / 3 * random.below(9));
            at
        });
        [Self::At(positions.collect()), Self::Linear, Self::Tree]
    }
}

/// Rounds a sum to its dtype.
fn narrow<W, T: Narrow<W>>(sum: W) -> T {
    T::narrow(sum)
}

trait Narrow<W> {
    fn narrow(wide: W) -> Self;
}

impl<T> Narrow<T> for T {
    fn narrow(wide: T) -> T {
        wide
    }
}

impl Narrow<f32> for f16 {
    fn narrow(wide: f32) -> f16 {
        f16::from_f32(wide)
    }
}

impl Narrow<f32> for bf16 {
    fn narrow(wide: f32) -> bf16 {
        bf16::from_f32(wide)
    }
}

floats!(f32, 23, 127, f32; f64, 52, 1023, f64; f16, 10, 15, f32; bf16, 7, 127, f32);

const TRAFFICS: [Traffic; 4] = [Traffic::Cached, Traffic::Ahead, Traffic::Streaming, Traffic::Far];

/// An array with room around it, which starts a number of elements after a cache line's start.
struct Out<T> {
    memory: Vec<T>,
    at: usize,
}

/// Content of the guard area around outs.
fn guard<T: Number>() -> T {
    T::random(&mut Random::new(1))
}

fn bytes_of<T: Number>(elements: &[T]) -> &[u8] {
    // SAFETY: the elements are plain numbers.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

impl<T: Number> Out<T> {
    fn new(offset: usize, elements: &[T]) -> Self {
        let mut memory = vec![guard::<T>(); elements.len() + offset + 2 * 64];
        let at = memory.as_ptr().align_offset(64) + offset;
        memory[at..][..elements.len()].copy_from_slice(elements);
        Self { memory, at }
    }

    fn start(&mut self) -> *mut u8 {
        self.memory[self.at..].as_mut_ptr().cast()
    }

    /// So many elements as bytes.
    fn bytes(&self, count: usize) -> &[u8] {
        bytes_of(&self.memory[self.at..][..count])
    }

    fn check(&self, expected: &[T], exact: bool, case: &dyn Fn() -> String) {
        let (before, rest) = self.memory.split_at(self.at);
        let (found, after) = rest.split_at(expected.len());
        for (i, (found, &expected)) in found.iter().zip(expected).enumerate() {
            let equal = found.bits() == expected.bits() || !exact && found.is_same(expected);
            let (found, expected) = (found.bits(), expected.bits());
            assert!(equal, "{}, element {i}: {found:x}, not {expected:x}", case());
        }
        let intact = before.iter().chain(after).all(|it| it.bits() == guard::<T>().bits());
        assert!(intact, "{}: wrote outside", case());
    }
}

/// Compares sums with the scalar loop: in every build and way, into one to three outs and in place
/// of an input, at element offsets that break every alignment. Since every build is compared with
/// the same loop, all have equal bits.
fn check_sum<T: Number>(pool: &[Vec<T>], count: usize, shift: usize) {
    check_sum_in::<T>(&Ordered::Linear, pool, count, shift);
    check_sum_in::<T>(&Ordered::Tree, pool, count, shift);
}

fn check_sum_in<T: Number>(ordered: &Ordered, pool: &[Vec<T>], count: usize, shift: usize) {
    ordered.with(|order| check_sum_as(ordered, order, pool, count, shift));
}

fn check_sum_as<T: Number>(
    ordered: &Ordered,
    order: SumOrder<'_>,
    pool: &[Vec<T>],
    count: usize,
    shift: usize,
) {
    let offset = |index: usize| 1 + (index + shift) % 8;
    let inputs: Vec<&[T]> =
        pool.iter().enumerate().map(|(i, input)| &input[offset(i)..][..count]).collect();
    let starts: Vec<*const u8> = inputs.iter().map(|input| input.as_ptr().cast()).collect();
    let expected: Vec<T> =
        (0..count).map(|i| ordered.sum(inputs.iter().map(|input| input[i]))).collect();
    let exact = inputs.len() == 1;
    for (isa, traffic) in isas().flat_map(|isa| TRAFFICS.map(|traffic| (isa, traffic))) {
        let case = || {
            format!("{} {traffic:?} {:?} {order:?}, {} x {count}", isa.name(), T::DTYPE, pool.len())
        };
        for number in 1..=3 {
            let fresh = || Out::new(offset(inputs.len()), &vec![guard(); count]);
            let mut outs: Vec<Out<T>> = (0..number).map(|_| fresh()).collect();
            let places: Vec<*mut u8> = outs.iter_mut().map(Out::start).collect();
            let inputs_of = &inputs;
            let (dtype, inputs, outs_at) = (T::DTYPE, &*starts, &*places);
            let pass = Pass { dtype, outs: outs_at, inputs, count, traffic, order, divisor: None };
            // SAFETY: the arrays have `count` elements, and no out is an input.
            unsafe { isa.sum(&pass) };
            for out in &outs {
                out.check(&expected, exact, &case);
            }
            for scope in [DigestScope::Value, DigestScope::All { inputs: true }] {
                if isa.digests_sum(&pass, scope) {
                    check_digested(isa, (&pass, scope), (&mut outs, inputs_of), &expected, &case);
                }
            }
        }
        let last = inputs.len() - 1;
        let mut place = Out::new(offset(last), inputs[last]);
        let outs = [place.start()];
        let mut starts = starts.clone();
        starts[last] = outs[0];
        let (dtype, outs, inputs) = (T::DTYPE, &outs[..], &*starts);
        let pass = Pass { dtype, outs, inputs, count, traffic, order, divisor: None };
        // SAFETY: the arrays have `count` elements, and the out is exactly the last input.
        unsafe { isa.sum(&pass) };
        place.check(&expected, exact, &|| format!("{} in place", case()));
    }
}

/// Makes a sum again, and compares its digests with those of its arrays.
fn check_digested<T: Number>(
    isa: Isa,
    (pass, scope): (&Pass<'_>, DigestScope),
    (outs, inputs): (&mut [Out<T>], &[&[T]]),
    expected: &[T],
    case: &dyn Fn() -> String,
) {
    for out in &mut *outs {
        let at = out.at;
        out.memory[at..][..expected.len()].fill(guard());
    }
    let mut digests = BEFORE;
    isa.sum_digested_planned(pass, (&mut digests, scope));
    outs.iter().for_each(|out| out.check(expected, inputs.len() == 1, case));
    let mut expected_digests = BEFORE;
    let sum = outs[0].bytes(expected.len());
    expected_digests.value = crc64::append(BEFORE.value, sum);
    if scope != DigestScope::Value {
        for (digest, input) in expected_digests.inputs.iter_mut().zip(inputs) {
            *digest = crc64::append(*digest, bytes_of(input));
        }
    }
    assert_eq!(digests, expected_digests, "{scope:?} of {}", case());
}

/// The digests of what is before the arrays of a pass.
const BEFORE: PassDigests =
    PassDigests { value: u64::MAX / 3, states: [1, 2, 0, 3], inputs: [4, 0, 5, u64::MAX] };

fn check_sums<T: Number>(random: &mut Random) {
    let (inputs, sizes) = if is_small() { (&INPUTS[..5], &SIZES[..8]) } else { (INPUTS, SIZES) };
    let most = sizes.iter().max().unwrap() + 8;
    let pool: Vec<Vec<T>> = (0..*inputs.last().unwrap())
        .map(|_| (0..=most).map(|_| T::random(random)).collect())
        .collect();
    for &n in inputs {
        for (index, &size) in sizes.iter().enumerate() {
            check_sum_in(&Ordered::Linear, &pool[..n], size, index + n);
        }
    }
    let (most, sizes) = if is_small() { (9, &[1, 65][..]) } else { (33, &[1, 9, 65, 700][..]) };
    for n in 1..=most {
        let [gaps, _, tree] = Ordered::all(random, n);
        for (index, &size) in sizes.iter().enumerate() {
            check_sum_in(&tree, &pool[..n], size, index + n);
            check_sum_in(&gaps, &pool[..n], size, index + n);
        }
    }
}

#[test]
fn sums_of_all_builds_are_those_of_a_scalar_loop() {
    let mut random = Random::new(2026);
    check_sums::<f32>(&mut random);
    check_sums::<f64>(&mut random);
    check_sums::<f16>(&mut random);
    check_sums::<bf16>(&mut random);
    check_sums::<i8>(&mut random);
    check_sums::<u8>(&mut random);
    check_sums::<i32>(&mut random);
    check_sums::<i16>(&mut random);
    check_sums::<u16>(&mut random);
    check_sums::<u32>(&mut random);
    check_sums::<i64>(&mut random);
    check_sums::<u64>(&mut random);
}

/// The root of the mean square error of sums of so many random numbers from `least` to 1.
fn error_of(order: SumOrder<'_>, inputs: usize, least: f32) -> f64 {
    let (count, mut random) = (4_096, Random::new(inputs as u64));
    let mut number = || {
        let unit = (random.next() >> 40) as f32 / (1u32 << 24) as f32;
        least + unit * (1.0 - least)
    };
    let values: Vec<Vec<f32>> =
        (0..inputs).map(|_| (0..count).map(|_| number()).collect()).collect();
    let starts: Vec<*const u8> = values.iter().map(|value| value.as_ptr().cast()).collect();
    let mut out = vec![0.0f32; count];
    let outs = [out.as_mut_ptr().cast()];
    let (dtype, traffic, inputs) = (DType::F32, Traffic::Cached, &*starts);
    let pass = Pass { dtype, outs: &outs, inputs, count, traffic, order, divisor: None };
    // SAFETY: the arrays have `count` elements, and no out is an input.
    unsafe { Isa::Scalar.sum(&pass) };
    let error = |i: usize| {
        let exact: f64 = values.iter().map(|value| f64::from(value[i])).sum();
        (f64::from(out[i]) - exact).powi(2)
    };
    ((0..count).map(error).sum::<f64>() / count as f64).sqrt()
}

/// docs/use/semantics.md has the figures, which `--nocapture` shows.
#[test]
fn a_tree_is_more_exact_than_a_sum_from_the_left() {
    for least in [-1.0, 0.0] {
        for (inputs, bound) in [(8, 0.9), (64, 0.5), (512, 0.25)] {
            let [tree, linear] =
                [SumOrder::Tree, SumOrder::Linear].map(|it| error_of(it, inputs, least));
            let ratio = tree / linear;
            println!("{inputs} numbers from {least}: {tree:e} beside {linear:e}, {ratio:.2}");
            assert!(ratio < bound, "{inputs} numbers from {least}: {ratio}");
        }
    }
}

#[test]
fn a_sum_of_negative_zeros_is_a_negative_zero() {
    for n in 1..=9 {
        let pool = vec![vec![-0.0f32; 40]; n];
        check_sum(&pool, 17, 0);
        assert!(f32::sum(pool.iter().map(|input| input[0])).is_sign_negative());
    }
}

#[test]
fn a_nan_in_any_input_makes_the_sum_a_nan() {
    for n in 2..=9 {
        for with_nan in 0..n {
            let mut pool = vec![vec![f16::INFINITY; 40]; n];
            pool[with_nan] = vec![f16::from_bits(0x7C01); 40];
            check_sum(&pool, 23, 0);
            assert!(f16::sum(pool.iter().map(|input| input[0])).is_nan());
        }
    }
}

/// Converts an array to one that starts at an odd element offset.
fn convert<A: Element, B: Element + Default>(isa: Isa, from: &[A]) -> Vec<B> {
    let mut out = vec![B::default(); from.len() + 3];
    let (target, source) = (out[3..].as_mut_ptr().cast(), from.as_ptr().cast());
    // SAFETY: both arrays have the elements.
    unsafe { isa.convert((B::DTYPE, target), (A::DTYPE, source), from.len()) };
    out.split_off(3)
}

/// Converts with every build and compares with `expected`, element by element.
fn check_conversion<A: Number, B: Number>(from: &[A], expected: impl Fn(A) -> B) {
    for isa in isas() {
        let found: Vec<B> = convert(isa, from);
        for (&from, found) in from.iter().zip(found) {
            let expected = expected(from);
            assert!(
                found.is_same(expected),
                "{}: {:?} {:x} became {:?} {:x}, not {:x}",
                isa.name(),
                A::DTYPE,
                from.bits(),
                B::DTYPE,
                found.bits(),
                expected.bits()
            );
        }
    }
}

#[test]
fn all_16_bit_floats_convert_exactly_and_come_back() {
    let step = if is_small() { 7 } else { 1 };
    let patterns = || (0..=u16::MAX).step_by(step);
    let halves: Vec<f16> = patterns().map(f16::from_bits).collect();
    let brains: Vec<bf16> = patterns().map(bf16::from_bits).collect();
    check_conversion(&halves, f16::to_f32);
    check_conversion(&halves, f16::to_f64);
    check_conversion(&brains, bf16::to_f32);
    check_conversion(&brains, bf16::to_f64);
    check_conversion(&halves, |half| bf16::from_f32(half.to_f32()));
    check_conversion(&brains, |brain| f16::from_f32(brain.to_f32()));
    for isa in isas() {
        let through_f32: Vec<f16> = convert(isa, &convert::<f16, f32>(isa, &halves));
        let through_f64: Vec<f16> = convert(isa, &convert::<f16, f64>(isa, &halves));
        let brains_f32: Vec<bf16> = convert(isa, &convert::<bf16, f32>(isa, &brains));
        let brains_f64: Vec<bf16> = convert(isa, &convert::<bf16, f64>(isa, &brains));
        for (i, (&half, &brain)) in halves.iter().zip(&brains).enumerate() {
            assert!(half.is_same(through_f32[i]) && half.is_same(through_f64[i]), "f16 {i:#x}");
            assert!(brain.is_same(brains_f32[i]) && brain.is_same(brains_f64[i]), "bf16 {i:#x}");
        }
    }
}

#[test]
fn f32_rounds_to_16_bits_like_the_half_crate() {
    const CHUNK: u32 = 1 << 16;
    let step = if is_small() { 257 * 4099 } else { 257 };
    let mut pattern = 0u32;
    loop {
        let values: Vec<f32> = (0..CHUNK)
            .map_while(|i| pattern.checked_add(i.checked_mul(step)?))
            .map(f32::from_bits)
            .collect();
        check_conversion(&values, f16::from_f32);
        check_conversion(&values, bf16::from_f32);
        check_conversion(&values, f64::from);
        match CHUNK.checked_mul(step).and_then(|more| pattern.checked_add(more)) {
            Some(next) => pattern = next,
            None => return,
        }
    }
}

/// A float type that others are rounded to.
trait Target: Number {
    /// The non-negative values in ascending order; the one after the largest finite is the next
    /// power of two, which stands for infinity in the rounding rule.
    fn value(pattern: u32) -> f64;
    fn from_pattern(pattern: u32) -> Self;
    fn negative(self) -> Self;
    const INFINITY: u32;
}

macro_rules! targets {
    ($($float:ty, $bits:ty, $infinity:literal, $beyond:expr);+) => {$(impl Target for $float {
        const INFINITY: u32 = $infinity;
        fn value(pattern: u32) -> f64 {
            let value = f64::from(Self::from_pattern(pattern));
            if value.is_infinite() { $beyond } else { value }
        }
        #[allow(clippy::cast_possible_truncation, reason = "patterns of this type")]
        fn from_pattern(pattern: u32) -> Self { <$float>::from_bits(pattern as $bits) }
        fn negative(self) -> Self { -self }
    })+};
}

targets!(
    f16, u16, 0x7C00, 65_536.0;
    bf16, u16, 0x7F80, 2f64.powi(128);
    f32, u32, 0x7F80_0000, 2f64.powi(128)
);

/// Values of a wider float around the points where rounding to `T` turns, with their expected
/// results: between two neighbours the nearer one, half way the even one.
fn turning_points<T: Target>(low: u32) -> [(f64, T); 5] {
    let (below, above) = (T::value(low), T::value(low + 1));
    let middle = below + (above - below) / 2.0;
    let (low, high) = (T::from_pattern(low), T::from_pattern(low + 1));
    let even = if low.bits() % 2 == 0 { low } else { high };
    [
        (below, low),
        (below.next_up(), low),
        (middle.next_down(), low),
        (middle, even),
        (middle.next_up(), high),
    ]
}

fn check_turning_points<T: Target>(step: usize) {
    let mut values = Vec::new();
    let mut expected = Vec::new();
    for low in (0..T::INFINITY).step_by(step).chain([T::INFINITY - 1]) {
        for (value, rounded) in turning_points::<T>(low) {
            values.extend([value, -value]);
            expected.extend([rounded, rounded.negative()]);
        }
    }
    for isa in isas() {
        let found: Vec<T> = convert(isa, &values);
        for ((value, found), expected) in values.iter().zip(found).zip(&expected) {
            let name = isa.name();
            assert_eq!(found.bits(), expected.bits(), "{name}: {value:e} to {:?}", T::DTYPE);
        }
    }
}

#[test]
fn f64_rounds_once_at_every_turning_point() {
    let (each, some) = if is_small() { (97, 65_537 * 257) } else { (1, 65_537) };
    check_turning_points::<f16>(each);
    check_turning_points::<bf16>(each);
    check_turning_points::<f32>(some);
}

#[test]
fn f32_rounds_like_f64_at_every_turning_point() {
    fn check<T: Target>(step: usize) {
        let mut values = Vec::new();
        for low in (0..T::INFINITY).step_by(step) {
            for (value, _) in turning_points::<T>(low) {
                #[allow(clippy::cast_possible_truncation, reason = "any value nearby will do")]
                let value = value as f32;
                values.extend([value.next_down(), value, value.next_up()]);
            }
        }
        for isa in isas() {
            let wide: Vec<f64> = values.iter().map(|&value| f64::from(value)).collect();
            let (narrow, wide): (Vec<T>, Vec<T>) = (convert(isa, &values), convert(isa, &wide));
            for ((value, narrow), wide) in values.iter().zip(narrow).zip(wide) {
                assert_eq!(narrow.bits(), wide.bits(), "{}: {value:e}", isa.name());
            }
        }
    }
    let step = if is_small() { 97 } else { 1 };
    check::<f16>(step);
    check::<bf16>(step);
}

#[test]
fn tiny_and_huge_f64_become_zero_and_infinity_with_their_sign() {
    let values = [5e-324, 1e-300, 1e-46, 1e300, f64::MAX, f64::INFINITY];
    for isa in isas() {
        for value in values {
            let (half, brain, single): (Vec<f16>, Vec<bf16>, Vec<f32>) =
                (convert(isa, &[-value]), convert(isa, &[-value]), convert(isa, &[-value]));
            let expected = if value < 1.0 { -0.0 } else { f32::NEG_INFINITY };
            assert_eq!(half[0].to_bits(), f16::from_f32(expected).to_bits(), "{value:e}");
            assert_eq!(brain[0].to_bits(), bf16::from_f32(expected).to_bits(), "{value:e}");
            assert_eq!(single[0].to_bits(), expected.to_bits(), "{value:e}");
        }
    }
}

/// Compares the conversion of whole arrays with that of each element by the plain build.
fn check_arrays<A: Number, B: Number>(random: &mut Random) {
    let sizes = if is_small() { &SIZES[..8] } else { SIZES };
    for (index, &size) in sizes.iter().enumerate() {
        let offset = 1 + index % 8;
        let pool: Vec<A> = (0..offset + size).map(|_| A::random(random)).collect();
        check_conversion(&pool[offset..], |from| convert::<A, B>(Isa::Scalar, &[from])[0]);
    }
}

#[test]
fn arrays_of_any_size_and_offset_convert_as_their_elements_do() {
    fn from<A: Number>(random: &mut Random) {
        check_arrays::<A, f16>(random);
        check_arrays::<A, bf16>(random);
        check_arrays::<A, f32>(random);
        check_arrays::<A, f64>(random);
    }
    let mut random = Random::new(7);
    from::<f16>(&mut random);
    from::<bf16>(&mut random);
    from::<f32>(&mut random);
    from::<f64>(&mut random);
}

#[test]
fn equal_dtypes_are_copied_bit_for_bit() {
    let signalling = [f32::from_bits(0x7F80_0001), f32::from_bits(0xFFC1_2345), -0.0];
    for isa in isas() {
        let copied: Vec<f32> = convert(isa, &signalling);
        assert!(copied.iter().zip(signalling).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

#[test]
fn names_choose_builds_and_unknown_ones_are_refused() {
    for isa in isas() {
        assert_eq!(Isa::choose(isa.name()).unwrap(), isa);
    }
    assert!(Isa::choose("auto").unwrap().is_available());
    assert!(Isa::choose("mmx").is_err());
    let absent = Isa::ALL.into_iter().find(|isa| !isa.is_available()).unwrap();
    assert!(Isa::choose(absent.name()).is_err(), "no processor has both AVX2 and NEON");
}

#[test]
fn no_elements_need_no_memory() {
    let nowhere = std::ptr::null_mut::<u8>();
    for isa in isas() {
        for &dtype in DType::ALL {
            for (inputs, traffic) in (1..=4).flat_map(|n| TRAFFICS.map(|traffic| (n, traffic))) {
                let (outs, inputs) = ([nowhere], vec![nowhere.cast_const(); inputs]);
                let order = if inputs.len() == 4 { SumOrder::Tree } else { SumOrder::Linear };
                let pass = Pass {
                    dtype,
                    outs: &outs,
                    inputs: &inputs,
                    count: 0,
                    traffic,
                    order,
                    divisor: None,
                };
                // SAFETY: arrays without elements may lie anywhere.
                unsafe { isa.sum(&pass) };
            }
            let others = DType::ALL.iter().filter(|it| it.is_float() && dtype.is_float());
            for &other in others {
                // SAFETY: arrays without elements may lie anywhere.
                unsafe { isa.convert((other, nowhere), (dtype, nowhere), 0) };
            }
        }
    }
}
