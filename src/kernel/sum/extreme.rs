//! The largest and the smallest of several arrays (also called: max and min reduction), element by element.

use half::{bf16, f16};

use crate::kernel::TILE;
use crate::tensor::{DType, Element};

/// Which of two elements is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extreme {
    Largest,
    Smallest,
}

/// An element that is compared. The first of equal ones is kept, and the first NaN.
trait Compared: Element {
    fn exceeds(self, other: Self) -> bool;
    fn is_number(self) -> bool;
}

macro_rules! integers {
    ($($type:ty),+) => {$(
        impl Compared for $type {
            #[inline]
            fn exceeds(self, other: Self) -> bool {
                self > other
            }

            #[inline]
            fn is_number(self) -> bool {
                true
            }
        }
    )+};
}

macro_rules! floats {
    ($($type:ty),+) => {$(
        impl Compared for $type {
            #[inline]
            fn exceeds(self, other: Self) -> bool {
                self > other
            }

            #[inline]
            fn is_number(self) -> bool {
                !self.is_nan()
            }
        }
    )+};
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);
floats!(f16, bf16, f32, f64);

/// Writes the extreme of the inputs' elements to `out`. False for a dtype that is not compared.
///
/// Built once, and not for each instruction set: the comparisons have one result in all of them.
///
/// # Safety
/// Every input and `out` is an array of `count` aligned elements; `out` may be exactly an input, and overlaps
/// nothing else; there is at least one input.
#[inline(never)]
pub(crate) unsafe fn extreme(
    which: Extreme,
    dtype: DType,
    inputs: &[*const u8],
    out: *mut u8,
    count: usize,
) -> bool {
    macro_rules! by_type {
        ($($dtype:ident => $type:ty),+) => {
            match dtype {
                // SAFETY: the caller's promise.
                $(DType::$dtype => unsafe { fold::<$type>(which, inputs, out, count) },)+
                _ => return false,
            }
        };
    }
    by_type!(I8 => i8, I16 => i16, I32 => i32, I64 => i64, U8 => u8, U16 => u16, U32 => u32, U64 => u64,
        F16 => f16, BF16 => bf16, F32 => f32, F64 => f64);
    true
}

/// # Safety
/// As for [`extreme`], of elements of this type.
unsafe fn fold<T: Compared>(which: Extreme, inputs: &[*const u8], out: *mut u8, count: usize) {
    for start in (0..count).step_by(TILE) {
        let len = TILE.min(count - start);
        // SAFETY: the caller's promise; all inputs of a tile are read before the out, which may be one, is written.
        unsafe {
            let part =
                |input: &*const u8| std::slice::from_raw_parts(input.cast::<T>().add(start), len);
            let mut tile = [part(&inputs[0])[0]; TILE];
            tile[..len].copy_from_slice(part(&inputs[0]));
            for input in &inputs[1..] {
                for (kept, next) in tile[..len].iter_mut().zip(part(input)) {
                    let exceeds = match which {
                        Extreme::Largest => next.exceeds(*kept),
                        Extreme::Smallest => kept.exceeds(*next),
                    };
                    if kept.is_number() && (exceeds || !next.is_number()) {
                        *kept = *next;
                    }
                }
            }
            out.cast::<T>().add(start).copy_from_nonoverlapping(tile.as_ptr(), len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extremes<T: Compared>(dtype: DType, inputs: &[&[T]]) -> [Vec<T>; 2] {
        [Extreme::Largest, Extreme::Smallest].map(|which| {
            let mut out = inputs[0].to_vec();
            let starts: Vec<*const u8> = inputs.iter().map(|input| input.as_ptr().cast()).collect();
            // SAFETY: arrays of one length; the out is none of them.
            let is_done =
                unsafe { extreme(which, dtype, &starts, out.as_mut_ptr().cast(), out.len()) };
            assert!(is_done);
            out
        })
    }

    #[test]
    fn the_extremes_are_those_of_the_elements_and_a_nan_is_one() {
        let (one, two): (Vec<i32>, Vec<i32>) =
            (0..1_500).map(|at| (at * 7 % 11 - 5, at * 5 % 13 - 6)).unzip();
        let [largest, smallest] = extremes(DType::I32, &[&one, &two, &one]);
        for at in 0..one.len() {
            assert_eq!((largest[at], smallest[at]), (one[at].max(two[at]), one[at].min(two[at])));
        }
        let (nan, infinite) = (f32::NAN, f32::INFINITY);
        let [largest, smallest] =
            extremes(DType::F32, &[&[1.0, nan, 3.0, -0.0, 1.0], &[2.0, 1.0, nan, 0.0, -infinite]]);
        assert_eq!((largest[0], smallest[0]), (2.0, 1.0));
        for at in [1, 2] {
            assert!(largest[at].is_nan() && smallest[at].is_nan());
        }
        // Of equal elements the first is kept.
        assert_eq!(
            (largest[3].to_bits(), smallest[3].to_bits()),
            ((-0.0f32).to_bits(), (-0.0f32).to_bits())
        );
        assert_eq!((largest[4], smallest[4]), (1.0, -infinite));
        let halves = [f16::from_f32(1.5), f16::NAN, f16::from_f32(-2.0)];
        let others = [f16::from_f32(1.0), f16::from_f32(9.0), f16::from_f32(7.0)];
        let [largest, smallest] = extremes(DType::F16, &[&halves, &others]);
        assert_eq!((largest[0].to_f32(), smallest[0].to_f32()), (1.5, 1.0));
        assert!(largest[1].is_nan());
        assert_eq!((largest[2].to_f32(), smallest[2].to_f32()), (7.0, -2.0));
    }

    #[test]
    fn the_out_may_be_an_input_and_opaque_dtypes_are_not_compared() {
        let mut own = vec![3u8; 1_100];
        let other: Vec<u8> = (0..7u8).cycle().take(1_100).collect();
        let inputs = [other.as_ptr(), own.as_ptr()];
        // SAFETY: arrays of one length; the out is exactly an input.
        let is_done =
            unsafe { extreme(Extreme::Largest, DType::U8, &inputs, own.as_mut_ptr(), own.len()) };
        assert!(is_done && own.iter().zip(&other).all(|(own, other)| *own == 3.max(*other)));
        // SAFETY: nothing is read of a dtype that is not compared.
        let is_done =
            unsafe { extreme(Extreme::Largest, DType::C64, &inputs, own.as_mut_ptr(), 1) };
        assert!(!is_done);
    }
}
