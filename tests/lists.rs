//! Lists of plain tensors take a short way. It must not differ from the long one in anything.
//!
//! `KV_TEST_SEED` repeats a run; `KV_TEST_OPERATIONS` sets how many calls it has.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "sizes and numbers of a test"
)]
#![allow(clippy::unwrap_used, reason = "a failed test")]

mod common;

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

use common::random::{self, Random, operations};
use kvstore::{Config, DType, Key, Store, Tensor, TensorMut};

/// A tensor of the C interface.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawTensor {
    data: *mut u8,
    device: [i32; 2],
    ndim: i32,
    dtype: u32,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

type RawUpdater = extern "C" fn(*mut c_void, u64, *const RawTensor, *const RawTensor) -> i32;

unsafe extern "C" {
    fn kv_create(kind: *const c_char, config: *const c_void, store: *mut *mut c_void) -> i32;
    fn kv_free(store: *mut c_void);
    fn kv_intern(store: *mut c_void, name: *const c_char, key: *mut u64) -> i32;
    fn kv_init(store: *mut c_void, keys: *const u64, values: *const RawTensor, n: usize) -> i32;
    fn kv_remove(store: *mut c_void, keys: *const u64, n: usize) -> i32;
    fn kv_pushpull(
        store: *mut c_void,
        keys: *const u64,
        values: *const RawTensor,
        count: usize,
        out_keys: *const u64,
        outs: *const RawTensor,
        out_count: usize,
        priority: i32,
        ticket: *mut u64,
    ) -> i32;
    fn kv_wait(store: *mut c_void, ticket: u64, timeout_ms: i64) -> i32;
    fn kv_set_updater(
        store: *mut c_void,
        updater: Option<RawUpdater>,
        context: *mut c_void,
        drop: *const c_void,
    ) -> i32;
    fn kv_stats(store: *mut c_void, text: *mut c_char, capacity: usize, len: *mut usize) -> i32;
    fn kv_last_error() -> *const c_char;
}

const NAMES: &[&CStr] = &[c"w", c"fc1.weight", c"", c"b"];
const SPARSE: &[u64] = &[1 << 12, (1 << 22) - 1, 1 << 22, 1 << 40, (1 << 63) - 1];
const DENSE: u64 = 400;
const SHAPES: &[&[i64]] =
    &[&[], &[1], &[16], &[16], &[16], &[2, 3], &[0], &[5, 1, 3], &[1, 2, 3, 2], &[1; 6], &[1100]];

/// Memory of all tensors of a side.
const MEMORY: usize = 1 << 21;

/// An updater's memory: which keys it saw, and where it fails.
struct Seen {
    keys: Vec<u64>,
    fails_at: u64,
}

/// Adds bytes, so that it serves every dtype.
extern "C" fn add(
    context: *mut c_void,
    key: u64,
    input: *const RawTensor,
    stored: *const RawTensor,
) -> i32 {
    // SAFETY: the context is a side's `Seen`; the tensors are plain, of one shape.
    unsafe {
        let seen = &mut *context.cast::<Seen>();
        seen.keys.push(key);
        let (input, stored) = (&*input, &*stored);
        let extents = std::slice::from_raw_parts(input.shape, input.ndim as usize);
        let size = (input.dtype >> 8 & 0xFF) as usize / 8;
        for at in 0..extents.iter().product::<i64>() as usize * size {
            let byte = stored.data.add(at);
            *byte = (*byte).wrapping_add(*input.data.add(at));
        }
        i32::from(seen.fails_at == key)
    }
}

/// A cache line, so that both sides lie alike in theirs.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; 64]);

/// A store, and the memory of its tensors.
struct Side {
    store: *mut c_void,
    memory: Vec<Line>,
    seen: Box<Seen>,
}

/// A tensor of a call: where it lies in the memory of a side, and what it says about itself.
#[derive(Clone, Debug)]
struct Piece {
    at: usize,
    dtype: DType,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    device: i32,
    is_null: bool,
}

/// A call: what both sides do.
#[derive(Default, Debug)]
struct Call {
    keys: Vec<u64>,
    values: Vec<Piece>,
    out_keys: Vec<u64>,
    outs: Vec<Piece>,
    has_ticket: bool,
}

impl Piece {
    fn new(at: usize, dtype: DType, shape: &[i64]) -> Self {
        Self { at, dtype, shape: shape.into(), strides: None, device: 1, is_null: false }
    }

    fn bytes(&self) -> usize {
        self.shape.iter().product::<i64>() as usize * self.dtype.size()
    }
}

impl Side {
    fn new(random: &mut Random) -> Self {
        let mut store = null_mut();
        // SAFETY: a NUL-terminated string and a place of our own.
        assert_eq!(unsafe { kv_create(c"local".as_ptr(), null(), &raw mut store) }, 0);
        let line = |_| Line(std::array::from_fn(|_| random.next() as u8));
        let memory = (0..MEMORY / 64).map(line).collect();
        Self { store, memory, seen: Box::new(Seen { keys: Vec::new(), fails_at: 0 }) }
    }

    /// A piece in this side's memory. The closer look is what a `byte_offset` asks for.
    fn tensor(&mut self, piece: &Piece, closer_look: bool) -> RawTensor {
        let start = self.memory.as_mut_ptr().cast::<u8>().wrapping_add(piece.at);
        let offset = if closer_look { 64 } else { 0 };
        RawTensor {
            data: if piece.is_null { null_mut() } else { start.wrapping_sub(offset) },
            device: [piece.device, 0],
            ndim: piece.shape.len() as i32,
            dtype: piece.dtype.code(),
            shape: piece.shape.as_ptr(),
            strides: piece.strides.as_ref().map_or(null(), Vec::as_ptr),
            byte_offset: if piece.is_null { 0 } else { offset as u64 },
        }
    }

    /// Makes the call. Gives the status, and the text of an error without addresses.
    fn run(&mut self, call: &Call, closer_look: bool) -> (i32, String) {
        let mut tensors = |pieces: &[Piece]| -> Vec<RawTensor> {
            pieces.iter().map(|piece| self.tensor(piece, closer_look)).collect()
        };
        let (values, outs) = (tensors(&call.values), tensors(&call.outs));
        let mut ticket = 0;
        let place = if call.has_ticket { &raw mut ticket } else { null_mut() };
        // SAFETY: lists of their lengths, in memory that lives until the operation has completed.
        let status = unsafe {
            let status = kv_pushpull(
                self.store,
                call.keys.as_ptr(),
                values.as_ptr(),
                values.len(),
                call.out_keys.as_ptr(),
                outs.as_ptr(),
                outs.len(),
                0,
                place,
            );
            if ticket == 0 { status } else { kv_wait(self.store, ticket, -1) }
        };
        (status, if status == 0 { String::new() } else { last_error() })
    }

    fn init(&mut self, key: u64, piece: &Piece) -> i32 {
        let tensor = self.tensor(piece, false);
        // SAFETY: one key and one tensor.
        unsafe { kv_init(self.store, &raw const key, &raw const tensor, 1) }
    }

    fn stats(&self) -> String {
        let mut text = [0u8; 1024];
        // SAFETY: a buffer of its size.
        let status =
            unsafe { kv_stats(self.store, text.as_mut_ptr().cast(), text.len(), null_mut()) };
        assert_eq!(status, 0);
        CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap().into()
    }

    fn has_same_memory(&self, other: &Side) -> bool {
        self.memory.iter().zip(&other.memory).all(|(a, b)| a.0 == b.0)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // SAFETY: made by kv_create, freed once.
        unsafe { kv_free(self.store) }
    }
}

/// The text of the last error; of addresses only `0x` is left.
fn last_error() -> String {
    // SAFETY: never NULL, and no call has been made since.
    let text = unsafe { CStr::from_ptr(kv_last_error()) }.to_str().unwrap();
    let mut parts = text.split("address 0x");
    let head = parts.next().unwrap_or_default().to_owned();
    parts.fold(head, |text, part| text + part.trim_start_matches(|c: char| c.is_ascii_hexdigit()))
}

/// What the keys of the stores are, and what becomes of them.
struct Player {
    random: Random,
    sides: [Side; 2],
    /// Keys there are, with dtype and shape.
    living: Vec<(u64, DType, &'static [i64])>,
    absent: Vec<u64>,
}

impl Player {
    fn new(mut random: Random) -> Self {
        let seed = random.next();
        let mut sides = [seed, seed].map(|seed| Side::new(&mut Random::new(seed)));
        let mut absent: Vec<u64> = (0..DENSE).chain(SPARSE.iter().copied()).collect();
        for name in NAMES {
            let mut key = 0;
            for side in &mut sides {
                // SAFETY: a NUL-terminated string and a place of our own.
                assert_eq!(unsafe { kv_intern(side.store, name.as_ptr(), &raw mut key) }, 0);
            }
            absent.push(key);
        }
        random.shuffle(&mut absent);
        let mut player = Self { random, sides, living: Vec::new(), absent };
        (0..DENSE - 20).for_each(|_| player.init());
        player
    }

    fn init(&mut self) {
        // One stays absent.
        if self.absent.len() == 1 {
            return;
        }
        let Some(key) = self.absent.pop() else { return };
        let dtype = self.random.pick(&[DType::F32, DType::F32, DType::F16, DType::I64, DType::U8]);
        let shape = self.random.pick(SHAPES);
        let piece = Piece::new(64 + 8 * self.random.index(1 << 13), dtype, shape);
        for side in &mut self.sides {
            assert_eq!(side.init(key, &piece), 0);
        }
        self.living.push((key, dtype, shape));
    }

    fn remove(&mut self) {
        let gone = self.random.index(self.living.len());
        let (key, ..) = self.living.swap_remove(gone);
        for side in &self.sides {
            // SAFETY: one key.
            assert_eq!(unsafe { kv_remove(side.store, &raw const key, 1) }, 0);
        }
        self.absent.insert(0, key);
    }

    /// Sets an updater, which may fail, or none.
    fn set_updater(&mut self) {
        let (with_one, fails_at) = (self.random.one_in(2), self.random.pick(&self.living).0);
        let fails_at = if self.random.one_in(3) { fails_at } else { u64::MAX };
        for side in &mut self.sides {
            side.seen.fails_at = fails_at;
            let context = (&raw mut *side.seen).cast();
            let updater: Option<RawUpdater> = if with_one { Some(add) } else { None };
            // SAFETY: the context outlives the store's use of it.
            assert_eq!(unsafe { kv_set_updater(side.store, updater, context, null()) }, 0);
        }
    }

    /// Keys of a list: ascending, in any order, or with repeats.
    fn keys(&mut self) -> Vec<(u64, DType, &'static [i64])> {
        let count = self.random.pick(&[1, 1, 2, 3, 10, 40, 380]).min(self.living.len());
        let mut keys = self.living.clone();
        self.random.shuffle(&mut keys);
        keys.truncate(count);
        match self.random.below(3) {
            0 => keys.sort_unstable_by_key(|key| key.0),
            1 => {
                let again: Vec<_> = (0..=count / 2).map(|_| self.random.pick(&keys)).collect();
                keys.extend(again);
            }
            _ => {}
        }
        keys
    }

    /// Lays tensors out: one behind the other in either direction or in any order, or anywhere.
    fn place(&mut self, pieces: &mut [Piece]) {
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        match self.random.below(6) {
            0 => order.reverse(),
            1 | 2 => self.random.shuffle(&mut order),
            3 if self.random.one_in(4) => {
                let reach = self.random.pick(&[64, 1 << 12, 1 << 17]);
                for piece in pieces {
                    piece.at = 64 + self.random.index(reach) * 8;
                }
                return;
            }
            _ => {}
        }
        let gap = self.random.pick(&[0, 8, 64]);
        let mut next = 64 + 8 * self.random.index(1 << 13);
        for index in order {
            pieces[index].at = next;
            next += (pieces[index].bytes() + gap).next_multiple_of(8);
        }
        assert!(next < MEMORY);
    }

    fn pieces(&mut self, keys: &[(u64, DType, &'static [i64])]) -> Vec<Piece> {
        let mut pieces: Vec<Piece> =
            keys.iter().map(|&(_, dtype, shape)| Piece::new(0, dtype, shape)).collect();
        self.place(&mut pieces);
        if self.random.one_in(4) {
            let odd = self.random.index(pieces.len());
            self.make_odd(&mut pieces[odd]);
        }
        pieces
    }

    /// Makes a tensor one that the short way may not or must not take.
    fn make_odd(&mut self, piece: &mut Piece) {
        let row_major = |shape: &[i64]| -> Vec<i64> {
            (0..shape.len()).map(|at| shape[at + 1..].iter().product()).collect()
        };
        match self.random.below(10) {
            0 | 1 => piece.strides = Some(row_major(&piece.shape)),
            2 => piece.strides = Some(piece.shape.iter().map(|_| 1).collect()),
            3 => piece.device = self.random.pick(&[0, 2, 3, 99]),
            4 => piece.is_null = true,
            5 => piece.at += 1,
            6 => piece.shape.push(1),
            7 => piece.shape.iter_mut().for_each(|extent| *extent += 1),
            8 => piece.shape.iter_mut().for_each(|extent| *extent = -*extent),
            _ => piece.dtype = self.random.pick(DType::ALL),
        }
    }

    fn call(&mut self) -> Call {
        let mut call = Call { has_ticket: self.random.one_in(5), ..Call::default() };
        let kind = self.random.index(4);
        let keys = self.keys();
        if kind != 0 {
            call.values = self.pieces(&keys);
            call.keys = keys.iter().map(|key| key.0).collect();
        }
        if kind != 1 {
            let keys = if kind == 2 { self.keys() } else { keys };
            call.outs = self.pieces(&keys);
            call.out_keys = keys.iter().map(|key| key.0).collect();
        }
        if kind == 3 && self.random.one_in(3) {
            call.outs.clone_from(&call.values);
        }
        if self.random.one_in(12) {
            let keys = if call.keys.is_empty() { &mut call.out_keys } else { &mut call.keys };
            let at = self.random.index(keys.len());
            keys[at] = self.random.pick(&self.absent);
        }
        call
    }

    /// Makes a call on both sides, and compares everything.
    fn compare(&mut self) {
        let call = self.call();
        let [one, other] = &mut self.sides;
        let (short, long) = (one.run(&call, false), other.run(&call, true));
        assert_eq!(short, long, "{call:?}");
        assert!(one.has_same_memory(other), "{short:?} {call:?}");
        assert_eq!(one.seen.keys, other.seen.keys, "{call:?}");
        one.seen.keys.clear();
        other.seen.keys.clear();
        assert_eq!(one.stats(), other.stats(), "{call:?}");
    }

    /// Pulls every key on both sides.
    fn compare_values(&mut self) {
        for (key, dtype, shape) in self.living.clone() {
            let outs = vec![Piece::new(64, dtype, shape)];
            let call = Call { out_keys: vec![key], outs, ..Call::default() };
            for side in &mut self.sides {
                assert_eq!(side.run(&call, false).0, 0);
            }
            let [one, other] = &self.sides;
            assert!(one.has_same_memory(other), "key {key} differs");
        }
    }
}

#[test]
fn the_short_way_differs_in_nothing() {
    let mut player = Player::new(random::from_environment("lists"));
    for round in 0..operations(8_000) {
        match player.random.below(40) {
            0 => player.init(),
            1 => player.remove(),
            2 => player.set_updater(),
            _ => player.compare(),
        }
        if round % 500 == 0 {
            player.compare_values();
        }
    }
    player.compare_values();
}

/// Floats of the layers of a model, about the borders at which a list is planned instead.
const LAYERS: &[usize] = &[1, 511, 2_047, 2_048, 2_049, 9_000, 32_767];
const LARGE_LAYERS: &[usize] = &[32_768, 50_000, 150_000];

/// Two values for each layer, in integers, so that a sum has no rounding.
fn gradient(layer: usize, value: usize, len: usize) -> Vec<f32> {
    (0..len).map(|at| ((at + 7 * layer + 3 * value) % 1_000) as f32).collect()
}

fn tensors(arrays: &[Vec<f32>]) -> Vec<Tensor<'_>> {
    arrays.iter().map(Tensor::from).collect()
}

fn places(arrays: &mut [Vec<f32>]) -> Vec<TensorMut<'_>> {
    arrays.iter_mut().map(TensorMut::from).collect()
}

/// Threads share layers out whose sizes differ by far, and whose list is long enough for helpers.
#[test]
fn layers_of_any_size_have_the_sums_of_loops_on_any_threads() {
    let mixed = [LAYERS, LARGE_LAYERS].concat();
    // Long enough to be shared out in portions.
    let long = [32_767; 200];
    for (sizes, threads) in
        [(LAYERS, "1"), (LAYERS, "2"), (LAYERS, "3"), (&mixed, "2"), (&long, "2")]
    {
        let config = Config::new().with("threads", threads).unwrap();
        let store = Store::open("local", &config).unwrap();
        let sizes: Vec<usize> = sizes.iter().copied().cycle().take(sizes.len().max(70)).collect();
        let keys: Vec<Key> = (0..sizes.len() as u64).map(Key::from).collect();
        let of = |value| -> Vec<Vec<f32>> {
            sizes.iter().enumerate().map(|(layer, &len)| gradient(layer, value, len)).collect()
        };
        let (first, second) = (of(0), of(1));
        let zeros: Vec<Vec<f32>> = sizes.iter().map(|&len| vec![0.0; len]).collect();
        store.init_list(&keys, &tensors(&zeros)).unwrap();
        let twice = [&keys[..], &keys[..]].concat();
        let values = [tensors(&first), tensors(&second)].concat();
        let mut outs = zeros.clone();
        for rule in ["", "sgd"] {
            let mut expected: Vec<Vec<f32>> = outs.clone();
            for (layer, weights) in expected.iter_mut().enumerate() {
                for (at, weight) in weights.iter_mut().enumerate() {
                    let sum = first[layer][at] + second[layer][at];
                    *weight = if rule.is_empty() { sum } else { *weight - 0.5 * sum };
                }
            }
            if !rule.is_empty() {
                store.set_optimizer(rule, "lr=0.5").unwrap();
            }
            store.pushpull_list(&twice, &values, &keys, &mut places(&mut outs)).unwrap();
            assert_eq!(outs, expected, "{rule}, threads {threads}");
            let mut pulled = zeros.clone();
            store.pull_list(&keys, &mut places(&mut pulled)).unwrap();
            assert_eq!(pulled, expected, "{rule}, threads {threads}");
        }
    }
}
