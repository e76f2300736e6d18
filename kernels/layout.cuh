// Copies between arrays of any strides, with conversion between float types: gathers and scatters
// of strided tensors, and plain conversions. One rounding, as in src/kernel/convert.rs.
//
// A job has one input, one out, and extents: the number of dimensions, from 1, then for each one,
// the innermost first, how many elements it has and the strides of input and out, in elements,
// which may be negative. The addresses are those of the elements with all indices 0. `count` is the
// product of the extents; the out's elements are distinct.
#pragma once

#include "job.cuh"

// Elements that are copied as they are.
template <class Bits> struct Same {
  typedef Bits Memory;
  DEVICE_MEMBER static Bits widen(Bits bits) { return bits; }
  DEVICE_MEMBER static Bits narrow(Bits bits) { return bits; }
};

// The bits of a number of type From as one of type To.
template <class From, class To> struct Conversion {
  template <class Bits> DEVICE_MEMBER static auto of(Bits bits) {
    return To::narrow(From::widen(bits));
  }
};
template <> struct Conversion<F64, F32> {
  DEVICE_MEMBER static u32 of(u64 bits) { return bits_of(__double2float_rn(double_of(bits))); }
};
template <class To> struct Conversion<F64, To> {
  DEVICE_MEMBER static u32 of(u64 bits) { return To::narrow(f64_to_f32_odd(double_of(bits))); }
};

template <class From, class To> DEVICE void copy(PARAMETERS) {
  const Job job = jobs[blocks[2 * blockIdx.x]];
  const u64 first = (u64)blocks[2 * blockIdx.x + 1] * CHUNK;
  const u64 end = min(first + CHUNK, job.count);
  const u64 *places = addresses + job.addresses;
  const u64 input = places[0], out = places[1];
  const u32 dimensions = (u32)places[2];
#pragma unroll 1
  for (u64 index = first + threadIdx.x; index < end; index += THREADS) {
    u64 rest = index, from = 0, to = 0;
    const u64 *dimension = places + 3;
#pragma unroll 1
    for (u32 i = 1; i < dimensions; i++, dimension += 3) {
      const u64 outer = rest / dimension[0], inner = rest - outer * dimension[0];
      from += inner * dimension[1];
      to += inner * dimension[2];
      rest = outer;
    }
    from += rest * dimension[1];
    to += rest * dimension[2];
    set_element<To>(out, to, Conversion<From, To>::of(element<From>(input, from)));
  }
}
