//! The build without special instructions. On aarch64 it is the NEON build: the compiler uses NEON
//! there by itself.

use super::lanes::{Bf16, F16, Plain};
use super::sum::Build;

pub(super) struct Portable;

/// Elements of four bytes at a time: a cache line on aarch64. Elsewhere this build is a fallback for
/// old processors, and shorter loops make a smaller library.
const WIDE: usize = if cfg!(target_arch = "aarch64") { 16 } else { 8 };

impl Build for Portable {
    type F32 = Plain<f32, WIDE>;
    type F32Line = Plain<f32, WIDE>;
    type F64 = Plain<f64, { WIDE / 2 }, 1>;
    type F16 = Plain<F16, WIDE>;
    type Bf16 = Plain<Bf16, WIDE>;
    type I8 = Plain<i8, 16>;
    type I16 = Plain<i16, WIDE>;
    type I32 = Plain<i32, WIDE>;
    type I64 = Plain<i64, { WIDE / 2 }>;

    const INSTANCES: bool = cfg!(target_arch = "aarch64");

    #[inline(always)]
    fn prefetch(_: *const u8) {}

    #[inline(always)]
    fn fence() {}

    #[inline(never)]
    unsafe fn apart<T>(work: impl FnOnce() -> T) -> T {
        work()
    }
}
