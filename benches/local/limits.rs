//! What this machine can do: the fastest ways to move memory, on one thread and on several.

use std::cell::RefCell;
use std::hint::black_box;

use crate::crew::Crew;
use crate::memory::{Array, MALLOC};
use crate::timing::{Subject, timed};
use crate::wide::built_wide;

/// A way to move memory, with how many arrays it touches.
#[derive(Clone, Copy)]
pub enum Way {
    Copy,
    Triad,
    StreamingTriad,
}

impl Way {
    pub const ALL: [Self; 3] = [Self::Copy, Self::Triad, Self::StreamingTriad];

    fn arrays(self) -> f64 {
        match self {
            Self::Copy => 2.0,
            Self::Triad | Self::StreamingTriad => 3.0,
        }
    }
}

/// Bytes a second of each way.
#[derive(Clone, Copy)]
pub struct Rates([f64; 3]);

impl Rates {
    /// From the seconds that each way took for arrays of `len` floats.
    pub fn new(len: usize, seconds: &[f64]) -> Self {
        Self(Way::ALL.map(|way| way.arrays() * 4.0 * len as f64 / seconds[way as usize]))
    }

    pub fn of(&self, way: Way) -> f64 {
        self.0[way as usize]
    }

    pub fn best(&self) -> f64 {
        self.0.into_iter().fold(0.0, f64::max)
    }
}

/// Arrays of `len` floats to move, in one piece for each thread.
pub struct Limits {
    piece: RefCell<Piece>,
    crew: RefCell<Crew>,
}

impl Limits {
    pub fn new(len: usize, threads: usize) -> Self {
        let size = len / threads;
        let helpers = (1..threads).map(|_| {
            let mut piece = Piece::new(size);
            move |way| piece.run(way)
        });
        let crew = RefCell::new(Crew::new(helpers));
        Self { piece: RefCell::new(Piece::new(len - size * (threads - 1))), crew }
    }

    pub fn subject(&self, way: Way) -> Subject<'_> {
        timed(move || {
            let mine = |way| self.piece.borrow_mut().run(way);
            self.crew.borrow_mut().run(way as u32, mine);
        })
    }
}

struct Piece {
    a: Array<f32>,
    b: Array<f32>,
    out: Array<f32>,
}

impl Piece {
    fn new(len: usize) -> Self {
        let array = |number: f32| Array::new(MALLOC, len, |_| number);
        Self { a: array(1.0), b: array(2.0), out: array(0.0) }
    }

    fn run(&mut self, way: u32) {
        let (a, b, out) = (self.a.get(), self.b.get(), self.out.get_mut());
        match Way::ALL[way as usize] {
            Way::Copy => out.copy_from_slice(a),
            Way::Triad => triad(out, a, b),
            Way::StreamingTriad => streaming_triad(out, a, b),
        }
        black_box(out);
    }
}

built_wide! {
    fn triad(out: &mut [f32], a: &[f32], b: &[f32]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = a + 3.0 * b;
        }
    }
}

/// Stores past the caches, where the processor can.
fn streaming_triad(out: &mut [f32], a: &[f32], b: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has it.
        return unsafe { x86::streaming_triad_avx512(out, a, b) };
    } else if is_x86_feature_detected!("avx") {
        // SAFETY: as above.
        return unsafe { x86::streaming_triad_avx(out, a, b) };
    }
    triad(out, a, b);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        _mm_sfence, _mm256_add_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_set1_ps,
        _mm256_stream_ps, _mm512_add_ps, _mm512_loadu_ps, _mm512_mul_ps, _mm512_set1_ps,
        _mm512_stream_ps,
    };

    use super::triad;

    macro_rules! streaming_triad {
        ($name:ident, $feature:literal, $lanes:literal,
         $load:ident, $set:ident, $add:ident, $mul:ident, $stream:ident) => {
            /// Streams the aligned middle of `out`; the ends are stored plainly.
            #[target_feature(enable = $feature)]
            pub fn $name(out: &mut [f32], a: &[f32], b: &[f32]) {
                let head = out.as_ptr().align_offset(4 * $lanes).min(out.len());
                let tail = head + (out.len() - head) / $lanes * $lanes;
                triad(&mut out[..head], &a[..head], &b[..head]);
                let three = $set(3.0);
                for i in (head..tail).step_by($lanes) {
                    // SAFETY: so many elements are there, and `out + i` is aligned.
                    unsafe {
                        let (a, b) = ($load(a.as_ptr().add(i)), $load(b.as_ptr().add(i)));
                        $stream(out.as_mut_ptr().add(i), $add(a, $mul(three, b)));
                    }
                }
                _mm_sfence();
                triad(&mut out[tail..], &a[tail..], &b[tail..]);
            }
        };
    }

    streaming_triad!(
        streaming_triad_avx512,
        "avx512f",
        16,
        _mm512_loadu_ps,
        _mm512_set1_ps,
        _mm512_add_ps,
        _mm512_mul_ps,
        _mm512_stream_ps
    );
    streaming_triad!(
        streaming_triad_avx,
        "avx",
        8,
        _mm256_loadu_ps,
        _mm256_set1_ps,
        _mm256_add_ps,
        _mm256_mul_ps,
        _mm256_stream_ps
    );
}
