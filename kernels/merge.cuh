// Rules: the sum of a job's inputs is merged into its value by a formula, in the same pass that
// fills the outs; see src/kernel/rule.rs.
#pragma once

#include "sum.cuh"

// A formula's numbers of one push.
template <class R, class Full> struct Constants {
  Full all[R::CONSTANTS > 0 ? R::CONSTANTS : 1];

  DEVICE_MEMBER Constants(const double *constants) {
#pragma unroll
    for (int i = 0; i < R::CONSTANTS; i++) round_number(all[i], constants[i]);
  }
};

// A group of the arrays that a formula changes: the value, of type V, and STATES states.
template <class V, int STATES> struct Kept {
  typedef typename V::Full Full;
  typedef typename Master<Full>::Element State;
  static const int N = Lanes<Full>::COUNT;
  typename V::Group value;
  typename State::Group states[STATES > 0 ? STATES : 1];

  // Whether all the arrays can be read and written a group at a time.
  DEVICE_MEMBER static bool is_aligned(const Job &job) {
    bool aligned = job.value % sizeof(typename V::Group) == 0;
#pragma unroll
    for (int s = 0; s < STATES; s++)
      aligned = aligned && job.states[s] % sizeof(typename State::Group) == 0;
    return aligned;
  }

  DEVICE_MEMBER void load(const Job &job, u64 at, u32 left, bool aligned) {
    value = typename V::Group();
#pragma unroll
    for (int s = 0; s < STATES; s++) states[s] = typename State::Group();
    if (aligned && left == N) {
      load_whole(value, job.value + at * sizeof(typename V::Memory));
#pragma unroll
      for (int s = 0; s < STATES; s++) load_whole(states[s], job.states[s] + at * sizeof(Full));
      return;
    }
#pragma unroll 1
    for (u32 i = 0; i < N; i++) {
      const u64 from = at + min(i, left - 1);
      value.turn(element<V>(job.value, from));
#pragma unroll
      for (int s = 0; s < STATES; s++) states[s].turn(element<State>(job.states[s], from));
    }
  }

  DEVICE_MEMBER void store(const Job &job, u64 at, u32 left, bool aligned) const {
    if (aligned && left == N) {
      store_whole(job.value + at * sizeof(typename V::Memory), value);
#pragma unroll
      for (int s = 0; s < STATES; s++) store_whole(job.states[s] + at * sizeof(Full), states[s]);
      return;
    }
    Kept rest = *this;
#pragma unroll 1
    for (u32 i = 0; i < left; i++) {
      set_element<V>(job.value, at + i, rest.value.first());
      rest.value.turn(0);
#pragma unroll
      for (int s = 0; s < STATES; s++) {
        set_element<State>(job.states[s], at + i, rest.states[s].first());
        rest.states[s].turn(0);
      }
    }
  }
};

// R is the formula, E the type of inputs and outs, V the type in which the value is kept: E, or F32
// for a master of f16 or bf16, whose rounded value goes to the outs.
template <class R, class E, class V> DEVICE void merge(PARAMETERS) {
  typedef typename E::Full Full;
  typedef typename Master<Full>::Element State;
  const int N = Lanes<Full>::COUNT, STATES = R::STATES;
  const bool IS_MASTER = sizeof(typename V::Memory) > sizeof(typename E::Memory);
  const Job job = jobs[blocks[2 * blockIdx.x]];
  const u64 first = (u64)blocks[2 * blockIdx.x + 1] * CHUNK;
  const u64 end = min(first + CHUNK, job.count);
  const Addresses inputs(addresses + job.addresses, job.inputs);
  const Addresses outs(inputs.all + job.inputs, job.outs);
  const Constants<R, Full> numbers(constants + job.constants);
  const bool aligned = Kept<V, STATES>::is_aligned(job);
#pragma unroll 1
  for (u64 at = first + threadIdx.x * N; at < end; at += THREADS * N) {
    const u32 left = (u32)min(end - at, (u64)N);
    Kept<V, STATES> kept;
    kept.load(job, at, left, aligned);
    Full sum[N];
    add_up<E>(sum, inputs, at, left);
    // Of a master.
    typename E::Group rounded = typename E::Group();
#pragma unroll 1
    for (int i = 0; i < N; i++) {
      Full states[STATES > 0 ? STATES : 1];
#pragma unroll
      for (int s = 0; s < STATES; s++) states[s] = State::widen(kept.states[s].first());
      const Full result = R::step(numbers.all, sum[0], V::widen(kept.value.first()), states);
#pragma unroll
      for (int s = 0; s < STATES; s++) kept.states[s].turn(State::narrow(states[s]));
      turn(sum, sum[0]);
      if constexpr (IS_MASTER) rounded.turn(E::narrow(result));
      kept.value.turn(V::narrow(result));
    }
    kept.store(job, at, left, aligned);
    if constexpr (!IS_MASTER) rounded = kept.value;
#pragma unroll 1
    for (u32 k = 0; k < outs.count; k++) store<E>(outs.at(k), at, left, rounded);
  }
}

// The kernels of a formula, one a mode.
#define MERGES(R) \
  KERNEL R##_f32(PARAMETERS) { merge<R, F32, F32>(ARGUMENTS); } \
  KERNEL R##_f64(PARAMETERS) { merge<R, F64, F64>(ARGUMENTS); } \
  KERNEL R##_f16(PARAMETERS) { merge<R, F16, F16>(ARGUMENTS); } \
  KERNEL R##_bf16(PARAMETERS) { merge<R, BF16, BF16>(ARGUMENTS); } \
  KERNEL R##_f16_master(PARAMETERS) { merge<R, F16, F32>(ARGUMENTS); } \
  KERNEL R##_bf16_master(PARAMETERS) { merge<R, BF16, F32>(ARGUMENTS); }
