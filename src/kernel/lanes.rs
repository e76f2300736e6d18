//! How one dtype is loaded, added and stored by one instruction set, a register at a time.

use std::marker::PhantomData;

use super::half;
use super::number::{Arithmetic, Pair};

/// A register's worth of elements of one dtype.
///
/// Registers hold f16 and bf16 as f32. Every implementation of a dtype gives the same bits.
pub(super) trait Lanes {
    type Register: Copy;

    /// Bytes that a register's elements take in memory, a power of two.
    const BYTES: usize;

    /// # Safety
    /// `BYTES` bytes can be read, aligned to the element; the instruction set is there.
    unsafe fn load(from: *const u8) -> Self::Register;

    /// # Safety
    /// The instruction set is there.
    unsafe fn add(a: Self::Register, b: Self::Register) -> Self::Register;

    /// # Safety
    /// `BYTES` bytes can be written, aligned to the element; the instruction set is there.
    unsafe fn store(to: *mut u8, value: Self::Register);

    /// Stores past the caches.
    ///
    /// # Safety
    /// As [`Lanes::store`], and `to` is aligned to `BYTES`.
    unsafe fn stream(to: *mut u8, value: Self::Register) {
        // SAFETY: the caller's promise.
        unsafe { Self::store(to, value) }
    }
}

/// The lanes of a float dtype: formulas can calculate with their registers.
pub(super) trait FloatLanes: Lanes<Register: Arithmetic> {
    /// The registers' full-precision form in memory.
    type Full: Lanes<Register = Self::Register>;

    /// A register after a store and a load.
    ///
    /// # Safety
    /// The instruction set is there.
    unsafe fn round(value: Self::Register) -> Self::Register;
}

/// Two registers at a time.
pub(super) struct Two<L>(PhantomData<L>);

impl<L: Lanes> Lanes for Two<L> {
    type Register = Pair<L::Register>;

    const BYTES: usize = 2 * L::BYTES;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self::Register {
        // SAFETY: the caller's promise.
        unsafe { Pair(L::load(from), L::load(from.add(L::BYTES))) }
    }

    #[inline(always)]
    unsafe fn add(a: Self::Register, b: Self::Register) -> Self::Register {
        // SAFETY: the caller's promise.
        unsafe { Pair(L::add(a.0, b.0), L::add(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, value: Self::Register) {
        // SAFETY: the caller's promise.
        unsafe {
            L::store(to, value.0);
            L::store(to.add(L::BYTES), value.1);
        }
    }

    #[inline(always)]
    unsafe fn stream(to: *mut u8, value: Self::Register) {
        // SAFETY: the caller's promise.
        unsafe {
            L::stream(to, value.0);
            L::stream(to.add(L::BYTES), value.1);
        }
    }
}

impl<L: FloatLanes> FloatLanes for Two<L> {
    type Full = Two<L::Full>;

    #[inline(always)]
    unsafe fn round(value: Self::Register) -> Self::Register {
        // SAFETY: the caller's promise.
        unsafe { Pair(L::round(value.0), L::round(value.1)) }
    }
}

/// The elements of one dtype for one instruction set: many at a time, a register of them, and few or
/// one at a time for ends, without special instructions.
pub(super) trait Family {
    /// Whole cache lines: with several outs, half a line of each at a time would go to and fro.
    type Wide: Lanes;
    type Single: Lanes;
    type Few: Lanes;
    type One: Lanes;
}

/// A register of the loop that takes most elements.
pub(super) type WideOf<F> = <<F as Family>::Wide as Lanes>::Register;

/// The elements of a float dtype.
pub(super) trait FloatFamily:
    Family<Wide: FloatLanes, Single: FloatLanes, Few: FloatLanes, One: FloatLanes>
{
}

impl<F: Family<Wide: FloatLanes, Single: FloatLanes, Few: FloatLanes, One: FloatLanes>> FloatFamily
    for F
{
}

/// A number in memory as the number that is added.
pub(super) trait Scalar: Copy {
    type Sum: Copy;
    fn widen(self) -> Self::Sum;
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn narrow(sum: Self::Sum) -> Self;
}

macro_rules! scalars {
    ($($name:ident),+; $add:expr) => {$(
        impl Scalar for $name {
            type Sum = Self;
            #[inline(always)]
            fn widen(self) -> Self { self }
            #[inline(always)]
            fn add(a: Self, b: Self) -> Self { $add(a, b) }
            #[inline(always)]
            fn narrow(sum: Self) -> Self { sum }
        }
    )+};
}

scalars!(f32, f64; |a, b| a + b);
scalars!(i8, i16, i32, i64; Self::wrapping_add);

/// An f16 in memory.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F16(u16);

/// A bf16 in memory.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16(u16);

impl Scalar for F16 {
    type Sum = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        half::f16_to_f32(self.0)
    }

    #[inline(always)]
    fn add(a: f32, b: f32) -> f32 {
        a + b
    }

    #[inline(always)]
    fn narrow(sum: f32) -> Self {
        Self(half::f32_to_f16(sum))
    }
}

impl Scalar for Bf16 {
    type Sum = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        half::bf16_to_f32(self.0)
    }

    #[inline(always)]
    fn add(a: f32, b: f32) -> f32 {
        a + b
    }

    #[inline(always)]
    fn narrow(sum: f32) -> Self {
        Self(half::f32_to_bf16(sum))
    }
}

/// `N` elements as an array, which the compiler keeps in registers of the build's instructions.
pub(super) struct Portable<T, const N: usize>(PhantomData<T>);

impl<T: Scalar, const N: usize> Lanes for Portable<T, N> {
    type Register = [T::Sum; N];

    const BYTES: usize = N * size_of::<T>();

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self::Register {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[T; N]>().read() }.map(T::widen)
    }

    #[inline(always)]
    unsafe fn add(a: Self::Register, b: Self::Register) -> Self::Register {
        std::array::from_fn(|i| T::add(a[i], b[i]))
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, value: Self::Register) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[T; N]>().write(value.map(T::narrow)) }
    }
}

impl<T: Scalar<Sum: Scalar<Sum = T::Sum>>, const N: usize> FloatLanes for Portable<T, N>
where
    [T::Sum; N]: Arithmetic,
{
    type Full = Portable<T::Sum, N>;

    #[inline(always)]
    unsafe fn round(value: Self::Register) -> Self::Register {
        value.map(|it| T::widen(T::narrow(it)))
    }
}

/// Elements of `T` without special instructions.
pub(super) struct Plain<T, const WIDE: usize, const FEW: usize = 4>(PhantomData<T>);

impl<T: Scalar, const WIDE: usize, const FEW: usize> Family for Plain<T, WIDE, FEW> {
    type Wide = Portable<T, WIDE>;
    type Single = Portable<T, WIDE>;
    type Few = Portable<T, FEW>;
    type One = Portable<T, 1>;
}
