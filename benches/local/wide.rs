//! Loops built for the widest vectors of the processor, as a tuned C program has them.

/// Defines a function whose loops are compiled for AVX-512, for AVX2 and for the base instruction
/// set; the best one that the processor has is called.
macro_rules! built_wide {
    ($(#[$meta:meta])* $visible:vis fn $name:ident($($arg:ident: $type:ty),*) $body:block) => {
        $(#[$meta])*
        $visible fn $name($($arg: $type),*) {
            #[inline(always)]
            fn base($($arg: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f")]
                fn avx512($($arg: $type),*) {
                    base($($arg),*);
                }

                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $type),*) {
                    base($($arg),*);
                }

                if is_x86_feature_detected!("avx512f") {
                    // SAFETY: the processor has it.
                    return unsafe { avx512($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: as above.
                    return unsafe { avx2($($arg),*) };
                }
            }
            base($($arg),*);
        }
    };
}
pub(crate) use built_wide;
