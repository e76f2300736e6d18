//! What this machine can do: the fastest ways to move memory, on one thread and on several.

use std::cell::RefCell;
use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

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

/// Arrays of `len` floats to move, in one piece for each thread. The threads stay, as a library's
/// do, so that small arrays are not a measure of starting threads.
pub struct Limits {
    piece: RefCell<Piece>,
    helpers: Vec<Helper>,
    orders: RefCell<u32>,
}

impl Limits {
    pub fn new(len: usize, threads: usize) -> Self {
        let piece = len / threads;
        let helpers = (1..threads).map(|_| Helper::start(piece)).collect();
        let piece = RefCell::new(Piece::new(len - piece * (threads - 1)));
        Self { piece, helpers, orders: RefCell::new(0) }
    }

    pub fn subject(&self, way: Way) -> Subject<'_> {
        timed(move || self.run(way))
    }

    fn run(&self, way: Way) {
        let mut orders = self.orders.borrow_mut();
        *orders += 1;
        let order = *orders * 4 + way as u32;
        self.helpers.iter().for_each(|helper| helper.order(order));
        self.piece.borrow_mut().run(way);
        self.helpers.iter().for_each(|helper| helper.join(order));
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

    fn run(&mut self, way: Way) {
        let (a, b, out) = (self.a.get(), self.b.get(), self.out.get_mut());
        match way {
            Way::Copy => out.copy_from_slice(a),
            Way::Triad => triad(out, a, b),
            Way::StreamingTriad => streaming_triad(out, a, b),
        }
        black_box(out);
    }
}

/// The last order given and the last one done. An order is 4 times a number that counts up, plus
/// what to do.
#[derive(Default)]
struct Desk {
    given: AtomicU32,
    done: AtomicU32,
}

const STOP: u32 = 3;

struct Helper {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    fn start(len: usize) -> Self {
        let desk = Arc::new(Desk::default());
        let theirs = Arc::clone(&desk);
        let thread = thread::spawn(move || theirs.serve(&mut Piece::new(len)));
        Self { desk, thread: Some(thread) }
    }

    fn order(&self, order: u32) {
        self.desk.given.store(order, Ordering::SeqCst);
        self.thread.iter().for_each(|handle| handle.thread().unpark());
    }

    fn join(&self, order: u32) {
        while self.desk.done.load(Ordering::SeqCst) != order {
            spin_loop();
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.order(STOP);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Desk {
    fn serve(&self, piece: &mut Piece) {
        let mut last = 0;
        loop {
            last = self.next(last);
            match last % 4 {
                STOP => return,
                way => piece.run(Way::ALL[way as usize]),
            }
            self.done.store(last, Ordering::SeqCst);
        }
    }

    /// Waits for the next order: spinning for a while, then parked.
    fn next(&self, last: u32) -> u32 {
        let start = Instant::now();
        loop {
            let order = self.given.load(Ordering::SeqCst);
            if order != last {
                return order;
            }
            if start.elapsed() < Duration::from_micros(200) { spin_loop() } else { thread::park() }
        }
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
