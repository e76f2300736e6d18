//! What this machine can do: the fastest ways to move memory, on one thread and on several.

use std::hint::black_box;
use std::thread;

/// Arrays for the limits: two sources and a destination, one piece per thread.
pub struct Limits {
    a: Vec<f32>,
    b: Vec<f32>,
    out: Vec<f32>,
}

impl Limits {
    pub fn new(len: usize) -> Self {
        Self { a: vec![1.0; len], b: vec![2.0; len], out: vec![0.0; len] }
    }

    /// Bytes that a copy touches.
    pub fn copy_bytes(&self) -> f64 {
        8.0 * self.a.len() as f64
    }

    /// Bytes that a triad touches.
    pub fn triad_bytes(&self) -> f64 {
        12.0 * self.a.len() as f64
    }

    pub fn copy(&mut self, threads: usize) {
        self.pieces(threads, |out, a, _| out.copy_from_slice(a));
    }

    pub fn triad(&mut self, threads: usize) {
        self.pieces(threads, triad);
    }

    pub fn streaming_triad(&mut self, threads: usize) {
        self.pieces(threads, streaming_triad);
    }

    fn pieces(&mut self, threads: usize, work: fn(&mut [f32], &[f32], &[f32])) {
        if threads == 1 {
            work(&mut self.out, &self.a, &self.b);
        } else {
            let step = self.a.len().div_ceil(threads).next_multiple_of(16);
            thread::scope(|scope| {
                let inputs = self.a.chunks(step).zip(self.b.chunks(step));
                for (out, (a, b)) in self.out.chunks_mut(step).zip(inputs) {
                    scope.spawn(move || work(out, a, b));
                }
            });
        }
        black_box(&mut self.out);
    }
}

fn triad(out: &mut [f32], a: &[f32], b: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: found above.
        unsafe { x86::triad_avx512(out, a, b) };
        return;
    }
    plain_triad(out, a, b);
}

#[inline(always)]
fn plain_triad(out: &mut [f32], a: &[f32], b: &[f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a + 3.0 * b;
    }
}

fn streaming_triad(out: &mut [f32], a: &[f32], b: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: found above.
        unsafe { x86::streaming_triad_avx512(out, a, b) };
        return;
    }
    plain_triad(out, a, b);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        _mm_sfence, _mm512_add_ps, _mm512_loadu_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_stream_ps,
    };

    #[target_feature(enable = "avx512f")]
    pub unsafe fn triad_avx512(out: &mut [f32], a: &[f32], b: &[f32]) {
        super::plain_triad(out, a, b);
    }

    /// Streams the aligned middle of `out`; the ends are stored plainly.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn streaming_triad_avx512(out: &mut [f32], a: &[f32], b: &[f32]) {
        let head = out.as_ptr().align_offset(64).min(out.len());
        let body = (out.len() - head) / 16 * 16;
        super::plain_triad(&mut out[..head], &a[..head], &b[..head]);
        let three = _mm512_set1_ps(3.0);
        for i in (head..head + body).step_by(16) {
            // SAFETY: 16 elements are there, and `out + i` is aligned.
            unsafe {
                let (a, b) = (_mm512_loadu_ps(&raw const a[i]), _mm512_loadu_ps(&raw const b[i]));
                _mm512_stream_ps(&raw mut out[i], _mm512_add_ps(a, _mm512_mul_ps(three, b)));
            }
        }
        _mm_sfence();
        let tail = head + body;
        super::plain_triad(&mut out[tail..], &a[tail..], &b[tail..]);
    }
}
