// Sums of squares over the results of a measure, in the order of src/kernel/measure.rs: of each
// tile of 512 elements eight sums in f64, of every eighth square each, then those in pairs; then
// the tiles of a row in order, then the rows in order. Also called: norms, reductions.
//
// For the norm of a key a row is a block of 65,536 elements (NORM_BLOCK of src/optim/state.rs). For
// a rule that measures rows of the first axis, it is such a row.
#pragma once

#include "merge.cuh"

// Elements of a tile: TILE of src/kernel.
const u32 TILE = 512;

// Sums of a tile, and threads that make them.
const u32 SUMS = 8;

// Tiles of a chunk.
const u32 TILES = THREADS / SUMS;

// The first launch. A chunk is TILES tiles. The job's first out receives eight f64 for each tile:
// the sums over what the formula measures; if it measures the value too, the second out those over
// the value. The one extent is the length of a row; the last tile of a row is shorter.
template <class R, class E, class V> DEVICE void measure(PARAMETERS) {
  typedef typename E::Full Full;
  typedef typename Master<Full>::Element State;
  const int STATES = R::STATES;
  const Job job = jobs[blocks[2 * blockIdx.x]];
  const Addresses inputs(addresses + job.addresses, job.inputs);
  const u64 *outs = inputs.all + job.inputs;
  const u64 length = outs[job.outs];
  const Constants<R, Full> numbers(constants + job.constants);
  const u32 tile = blocks[2 * blockIdx.x + 1] * TILES + threadIdx.x / SUMS;
  const u32 lane = threadIdx.x % SUMS;
  const u32 tiles = (u32)((length + TILE - 1) / TILE), row = tile / tiles;
  const u64 begin = row * length, within = (u64)(tile - row * tiles) * TILE;
  const u64 start = begin + within;
  if (start >= job.count) return;
  const u64 end = min(min(start + TILE, begin + length), job.count);
  double measured = 0, value = 0;
#pragma unroll 1
  for (u64 at = start + lane; at < end; at += SUMS) {
    Full kept[STATES > 0 ? STATES : 1];
#pragma unroll
    for (int s = 0; s < STATES; s++) kept[s] = State::widen(element<State>(job.states[s], at));
    const Full old = V::widen(element<V>(job.value, at));
    const double result = R::step(numbers.all, add_up<E>(inputs, at), old, kept);
#pragma unroll
    for (int s = 0; s < STATES; s++) set_element<State>(job.states[s], at, State::narrow(kept[s]));
    measured = add(measured, mul(result, result));
    const double wide = old;
    if (R::WITH_VALUE) value = add(value, mul(wide, wide));
  }
  const u64 place = (u64)tile * SUMS + lane;
  set_element<F64>(outs[0], place, bits_of(measured));
  if (R::WITH_VALUE) set_element<F64>(outs[1], place, bits_of(value));
}

DEVICE double f64_at(u64 array, u64 at) { return double_of(element<F64>(array, at)); }

// Adds the eight sums of a tile in pairs.
DEVICE double fold(u64 sums, u64 tile) {
  double all[SUMS];
#pragma unroll
  for (u32 i = 0; i < SUMS; i++) all[i] = f64_at(sums, tile * SUMS + i);
#pragma unroll
  for (u32 half = SUMS / 2; half > 0; half /= 2) {
#pragma unroll
    for (u32 i = 0; i < half; i++) all[i] = add(all[i], all[i + half]);
  }
  return all[0];
}

// The second launch: `count` is the number of tiles, the input their sums, the extent the number of
// tiles of a row. A chunk is THREADS rows; the value receives one f64 for each row.
KERNEL norm_f64(PARAMETERS) {
  const Job job = jobs[blocks[2 * blockIdx.x]];
  const u64 sums = addresses[job.addresses], tiles = addresses[job.addresses + 1];
  const u64 row = (u64)blocks[2 * blockIdx.x + 1] * THREADS + threadIdx.x;
  const u64 start = row * tiles, end = min(start + tiles, job.count);
  if (start >= end) return;
  double sum = 0;
#pragma unroll 1
  for (u64 tile = start; tile < end; tile++) sum = add(sum, fold(sums, tile));
  set_element<F64>(job.value, row, bits_of(sum));
}

// The third launch, for a number of a whole key: `count` is the number of rows, the inputs their
// sums of what was measured, and of the value. The first thread of the only chunk adds them up; R
// gives the number, which goes to the constants, at the index `value`.
template <class R> DEVICE void key_number(PARAMETERS) {
  const Job job = jobs[blocks[2 * blockIdx.x]];
  if (threadIdx.x != 0) return;
  const u64 measured = addresses[job.addresses], value = addresses[job.addresses + 1];
  double sums[2] = {0, 0};
#pragma unroll 1
  for (u64 row = 0; row < job.count; row++) {
    sums[0] = add(sums[0], f64_at(measured, row));
    sums[1] = add(sums[1], f64_at(value, row));
  }
  const Constants<R, double> numbers(constants + job.constants);
  double none[1];
  const double number = R::step(numbers.all, sums[0], sums[1], none);
  set_element<F64>((u64)constants, job.value, bits_of(number));
}

// The third launch, for numbers of rows: `count` is the number of rows, the input their sums. The
// first constant is the length of a row, the others are those of R, which gives the number of a row
// from the mean and the row's state. A chunk is THREADS rows; the out receives the numbers.
template <class R, class State> DEVICE void row_numbers(PARAMETERS) {
  typedef typename State::Full Full;
  const Job job = jobs[blocks[2 * blockIdx.x]];
  const u64 row = (u64)blocks[2 * blockIdx.x + 1] * THREADS + threadIdx.x;
  if (row >= job.count) return;
  const u64 sums = addresses[job.addresses], numbers = addresses[job.addresses + 1];
  const double *own = constants + job.constants;
  const Constants<R, double> constant(own + 1);
  double state[1] = {(double)State::widen(element<State>(job.states[0], row))};
  const double number = R::step(constant.all, div(f64_at(sums, row), own[0]), 0.0, state);
  Full rounded[2];
  round_number(rounded[0], state[0]);
  round_number(rounded[1], number);
  set_element<State>(job.states[0], row, State::narrow(rounded[0]));
  set_element<State>(numbers, row, State::narrow(rounded[1]));
}

// Then rules of rows: as `merge`, with the only state R's number of an element's row. The one extent
// is the length of a row.
template <class R, class E, class V> DEVICE void merge_rows(PARAMETERS) {
  typedef typename E::Full Full;
  typedef typename Master<Full>::Element State;
  const bool IS_MASTER = sizeof(typename V::Memory) > sizeof(typename E::Memory);
  const Job job = jobs[blocks[2 * blockIdx.x]];
  const u64 first = (u64)blocks[2 * blockIdx.x + 1] * CHUNK;
  const u32 left = (u32)min((u64)CHUNK, job.count - first);
  const Addresses inputs(addresses + job.addresses, job.inputs);
  const Addresses outs(inputs.all + job.inputs, job.outs);
  const u64 length = outs.all[job.outs], row = first / length, within = first - row * length;
  const Constants<R, Full> numbers(constants + job.constants);
#pragma unroll 1
  for (u32 i = threadIdx.x; i < left; i += THREADS) {
    // A chunk has elements of two rows at most if a row is longer than it.
    const u64 place = within + i;
    const u32 further = length > CHUNK ? place >= length : (u32)place / (u32)length;
    const u64 at = first + i;
    Full state[1] = {State::widen(element<State>(job.states[0], row + further))};
    const Full old = V::widen(element<V>(job.value, at));
    const Full result = R::step(numbers.all, add_up<E>(inputs, at), old, state);
    set_element<V>(job.value, at, V::narrow(result));
    const auto rounded = E::narrow(result);
#pragma unroll 1
    for (u32 k = 0; k < outs.count; k++) set_element<E>(outs.at(k), at, rounded);
  }
}

// The kernels of a measure, one a mode.
#define MEASURES(R) \
  KERNEL R##_f32(PARAMETERS) { measure<R, F32, F32>(ARGUMENTS); } \
  KERNEL R##_f64(PARAMETERS) { measure<R, F64, F64>(ARGUMENTS); } \
  KERNEL R##_f16(PARAMETERS) { measure<R, F16, F16>(ARGUMENTS); } \
  KERNEL R##_bf16(PARAMETERS) { measure<R, BF16, BF16>(ARGUMENTS); } \
  KERNEL R##_f16_master(PARAMETERS) { measure<R, F16, F32>(ARGUMENTS); } \
  KERNEL R##_bf16_master(PARAMETERS) { measure<R, BF16, F32>(ARGUMENTS); }

// The kernel of a number of a key, and those of a number of a row by the type of its state.
#define KEY_NUMBER(R) KERNEL R##_f64(PARAMETERS) { key_number<R>(ARGUMENTS); }
#define ROW_NUMBER(R) \
  KERNEL R##_f32(PARAMETERS) { row_numbers<R, F32>(ARGUMENTS); } \
  KERNEL R##_f64(PARAMETERS) { row_numbers<R, F64>(ARGUMENTS); }

// The kernels of a rule of rows, one a mode.
#define MERGES_OF_ROWS(R) \
  KERNEL R##_f32(PARAMETERS) { merge_rows<R, F32, F32>(ARGUMENTS); } \
  KERNEL R##_f64(PARAMETERS) { merge_rows<R, F64, F64>(ARGUMENTS); } \
  KERNEL R##_f16(PARAMETERS) { merge_rows<R, F16, F16>(ARGUMENTS); } \
  KERNEL R##_bf16(PARAMETERS) { merge_rows<R, BF16, BF16>(ARGUMENTS); } \
  KERNEL R##_f16_master(PARAMETERS) { merge_rows<R, F16, F32>(ARGUMENTS); } \
  KERNEL R##_bf16_master(PARAMETERS) { merge_rows<R, BF16, F32>(ARGUMENTS); }
