// Sums, in the order of additions of Isa::sum in src/kernel: left to right, f16 and bf16 in f32 and
// rounded once, integers wrapping.
#pragma once

#include "job.cuh"

// The sum of a job's inputs, for a group of elements. One input is not rounded: it has been.
template <class E, int N>
DEVICE void add_up(typename E::Full (&sum)[N], const Addresses &inputs, u64 at, u32 left) {
  typedef typename E::Full Full;
#pragma unroll
  for (int i = 0; i < N; i++) sum[i] = 0;
#pragma unroll 1
  for (u32 k = 0; k < inputs.count; k++) {
    typename E::Group group;
    load<E>(group, inputs.at(k), at, left);
#pragma unroll E::UNROLL
    for (int i = 0; i < N; i++) {
      const Full number = E::widen(group.first());
      turn(sum, k == 0 ? number : add(sum[0], number));
      group.turn(0);
    }
  }
  if (sizeof(typename E::Memory) < sizeof(Full) && inputs.count > 1) {
#pragma unroll E::UNROLL
    for (int i = 0; i < N; i++) turn(sum, E::widen(E::narrow(sum[0])));
  }
}

// The same for one element.
template <class E> DEVICE typename E::Full add_up(const Addresses &inputs, u64 at) {
  typedef typename E::Full Full;
  Full sum = 0;
#pragma unroll 1
  for (u32 k = 0; k < inputs.count; k++) {
    const Full number = E::widen(element<E>(inputs.at(k), at));
    sum = k == 0 ? number : add(sum, number);
  }
  return inputs.count > 1 ? E::widen(E::narrow(sum)) : sum;
}

// Writes the sum of a job's inputs to its outs. One input is copied bit for bit.
template <class E> DEVICE void assign(PARAMETERS) {
  typedef typename E::Full Full;
  const int N = Lanes<Full>::COUNT;
  const Job job = jobs[blocks[2 * blockIdx.x]];
  const u64 first = (u64)blocks[2 * blockIdx.x + 1] * CHUNK;
  const u64 end = min(first + CHUNK, job.count);
  const Addresses inputs(addresses + job.addresses, job.inputs);
  const Addresses outs(inputs.all + job.inputs, job.outs);
#pragma unroll 1
  for (u64 at = first + threadIdx.x * N; at < end; at += THREADS * N) {
    const u32 left = (u32)min(end - at, (u64)N);
    typename E::Group result = typename E::Group();
    if (job.inputs == 1) {
      load<E>(result, inputs.at(0), at, left);
    } else {
      Full sum[N];
      add_up<E>(sum, inputs, at, left);
#pragma unroll 1
      for (int i = 0; i < N; i++) {
        result.turn(E::narrow(sum[0]));
        turn(sum, sum[0]);
      }
    }
#pragma unroll 1
    for (u32 k = 0; k < outs.count; k++) store<E>(outs.at(k), at, left, result);
  }
}
