//! The build without special instructions. On aarch64 it is the NEON build: the compiler uses NEON
//! there by itself.

use super::lanes::{Bf16, F16, Plain};
use super::sum::Build;

pub(super) struct Portable;

impl Build for Portable {
    type F32 = Plain<f32>;
    type F32Line = Plain<f32>;
    type F64 = Plain<f64, 8, 1>;
    type F16 = Plain<F16>;
    type Bf16 = Plain<Bf16>;
    type I8 = Plain<i8>;
    type I32 = Plain<i32>;
    type I64 = Plain<i64, 8>;

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
