//! The loops of [`crate::hand`]: what a tuned C program has in place of a store. Values are added
//! left to right, a rule's step follows, and the result goes to the stored value and to each out.

use std::ops::Range;

/// Arrays that a loop reads or writes, for the number of values and outs that it was built for.
#[derive(Clone, Copy)]
pub struct Loop<'a> {
    pub values: &'a [*const f32],
    pub outs: &'a [*mut f32],
    pub stored: *mut f32,
    pub states: [*mut f32; 2],
    pub step: Step,
}

// SAFETY: pieces of the arrays are disjoint, and the arrays outlive the order that a helper gets.
unsafe impl Send for Loop<'_> {}
// SAFETY: as above.
unsafe impl Sync for Loop<'_> {}

#[derive(Clone, Copy)]
pub enum Step {
    Assign,
    /// Of a learning rate.
    Momentum(f32),
    /// Of a learning rate with its bias correction.
    Adam(f32),
}

const MOMENTUM: f32 = 0.9;
const BETAS: [f32; 2] = [0.9, 0.999];
#[allow(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
const COUNTER_BETAS: [f32; 2] = [(1.0 - 0.9f64) as f32, (1.0 - 0.999f64) as f32];
const EPSILON: f32 = 1e-8;

/// How a loop treats the caches, and how many registers of each array it takes at a time.
#[derive(Clone, Copy)]
pub struct Variant {
    pub streams: bool,
    pub registers: usize,
}

impl Variant {
    /// One register and two; two of AVX2 are a line.
    pub const ALL: [Self; 4] = [
        Self { streams: false, registers: 1 },
        Self { streams: false, registers: 2 },
        Self { streams: true, registers: 1 },
        Self { streams: true, registers: 2 },
    ];

    pub fn name(self) -> String {
        let stores = if self.streams { "streaming" } else { "plain" };
        format!("{stores}, {}", self.registers)
    }
}

impl Loop<'_> {
    pub fn run(&self, variant: Variant, piece: Range<usize>) {
        #[cfg(target_arch = "x86_64")]
        {
            let avx512 = is_x86_feature_detected!("avx512f") && crate::isa() != "avx2";
            // The first element of the stored value that begins a line; outs lie equally.
            let start = self.stored.wrapping_add(piece.start);
            let head = piece.start + start.align_offset(64).min(piece.len());
            self.plain(piece.start..head);
            // SAFETY: the processor has it; the arrays are that long.
            let at = unsafe {
                if avx512 {
                    avx512::run(self, variant, head..piece.end)
                } else {
                    avx2::run(self, variant, head..piece.end)
                }
            };
            self.plain(at..piece.end);
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.plain(piece);
    }

    /// Element by element: the ends, and other processors.
    fn plain(&self, piece: Range<usize>) {
        for at in piece {
            // SAFETY: the caller's arrays are that long, and pieces are disjoint.
            unsafe {
                let sum = self.values[1..]
                    .iter()
                    .fold(*self.values[0].add(at), |sum, value| sum + *value.add(at));
                let [m, v] = self.states.map(|state| state.wrapping_add(at));
                let new = match self.step {
                    Step::Assign => sum,
                    Step::Momentum(lr) => {
                        *m = MOMENTUM * *m - lr * sum;
                        *self.stored.add(at) + *m
                    }
                    Step::Adam(lr) => {
                        *m = BETAS[0] * *m + COUNTER_BETAS[0] * sum;
                        *v = BETAS[1] * *v + COUNTER_BETAS[1] * (sum * sum);
                        *self.stored.add(at) - lr * *m / ((*v).sqrt() + EPSILON)
                    }
                };
                *self.stored.add(at) = new;
                self.outs.iter().for_each(|out| *out.add(at) = new);
            }
        }
    }
}

macro_rules! loops {
    ($name:ident, $feature:literal, $register:ident, $lanes:literal, $set:ident, $load:ident,
     $store:ident, $stream:ident, $add:ident, $sub:ident, $mul:ident, $div:ident, $sqrt:ident) => {
        #[cfg(target_arch = "x86_64")]
        mod $name {
            use std::arch::x86_64::*;
            use std::array;
            use std::ops::Range;

            use super::{BETAS, COUNTER_BETAS, EPSILON, Loop, MOMENTUM, Step, Variant};

            /// Runs over whole registers; gives the end reached.
            #[target_feature(enable = $feature)]
            pub fn run(work: &Loop<'_>, variant: Variant, piece: Range<usize>) -> usize {
                match (work.values.len(), work.outs.len()) {
                    (1, 1) => by_variant::<1, 1>(work, variant, piece),
                    (1, 4) => by_variant::<1, 4>(work, variant, piece),
                    (4, 1) => by_variant::<4, 1>(work, variant, piece),
                    (4, 4) => by_variant::<4, 4>(work, variant, piece),
                    _ => piece.start,
                }
            }

            #[target_feature(enable = $feature)]
            fn by_variant<const N: usize, const M: usize>(
                work: &Loop<'_>,
                variant: Variant,
                piece: Range<usize>,
            ) -> usize {
                match (variant.streams, variant.registers) {
                    (false, 1) => by_step::<N, M, 1, false>(work, piece),
                    (false, _) => by_step::<N, M, 2, false>(work, piece),
                    (true, 1) => by_step::<N, M, 1, true>(work, piece),
                    (true, _) => by_step::<N, M, 2, true>(work, piece),
                }
            }

            #[target_feature(enable = $feature)]
            fn by_step<const N: usize, const M: usize, const R: usize, const STREAM: bool>(
                work: &Loop<'_>,
                piece: Range<usize>,
            ) -> usize {
                let at = match work.step {
                    Step::Assign => go::<N, M, R, STREAM, 0>(work, 0.0, piece),
                    Step::Momentum(lr) => go::<N, M, R, STREAM, 1>(work, lr, piece),
                    Step::Adam(lr) => go::<N, M, R, STREAM, 2>(work, lr, piece),
                };
                if STREAM {
                    _mm_sfence();
                }
                at
            }

            #[target_feature(enable = $feature)]
            fn go<
                const N: usize,
                const M: usize,
                const R: usize,
                const STREAM: bool,
                const STATES: usize,
            >(
                work: &Loop<'_>,
                lr: f32,
                piece: Range<usize>,
            ) -> usize {
                let values: [*const f32; N] = array::from_fn(|i| work.values[i]);
                let outs: [*mut f32; M] = array::from_fn(|i| work.outs[i]);
                let (stored, [m, v]) = (work.stored, work.states);
                let lr = $set(lr);
                let (betas, counter) = (BETAS.map(|it| $set(it)), COUNTER_BETAS.map(|it| $set(it)));
                let mut at = piece.start;
                while at + R * $lanes <= piece.end {
                    // SAFETY: so many elements are there; a streamed out begins a register, as the
                    // first of the stored value does.
                    unsafe {
                        let place = |r: usize| at + r * $lanes;
                        let mut new: [$register; R] =
                            array::from_fn(|r| $load(values[0].add(place(r))));
                        for value in &values[1..] {
                            for r in 0..R {
                                new[r] = $add(new[r], $load(value.add(place(r))));
                            }
                        }
                        for r in 0..R {
                            let (m, v) = (m.wrapping_add(place(r)), v.wrapping_add(place(r)));
                            let old = stored.add(place(r));
                            if STATES == 1 {
                                let moment = $sub($mul($set(MOMENTUM), $load(m)), $mul(lr, new[r]));
                                $store(m, moment);
                                new[r] = $add($load(old), moment);
                            } else if STATES == 2 {
                                let first =
                                    $add($mul(betas[0], $load(m)), $mul(counter[0], new[r]));
                                let square = $mul(new[r], new[r]);
                                let second =
                                    $add($mul(betas[1], $load(v)), $mul(counter[1], square));
                                $store(m, first);
                                $store(v, second);
                                let root = $add($sqrt(second), $set(EPSILON));
                                new[r] = $sub($load(old), $div($mul(lr, first), root));
                            }
                            // What was read lies in the cache already.
                            if STREAM && STATES == 0 {
                                $stream(old, new[r]);
                            } else {
                                $store(old, new[r]);
                            }
                        }
                        for out in outs {
                            for r in 0..R {
                                if STREAM {
                                    $stream(out.add(place(r)), new[r]);
                                } else {
                                    $store(out.add(place(r)), new[r]);
                                }
                            }
                        }
                    }
                    at += R * $lanes;
                }
                at
            }
        }
    };
}

loops!(
    avx512,
    "avx512f",
    __m512,
    16,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_stream_ps,
    _mm512_add_ps,
    _mm512_sub_ps,
    _mm512_mul_ps,
    _mm512_div_ps,
    _mm512_sqrt_ps
);
loops!(
    avx2,
    "avx2",
    __m256,
    8,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_stream_ps,
    _mm256_add_ps,
    _mm256_sub_ps,
    _mm256_mul_ps,
    _mm256_div_ps,
    _mm256_sqrt_ps
);
