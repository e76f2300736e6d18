// Numbers as formulas calculate with them. Every operation is the one of IEEE 754, rounded once to
// nearest even: written as an intrinsic, it is neither fused nor approximated, whatever the
// compiler's options are. Results have the bits of src/kernel/number.rs and src/kernel/half.rs.
#pragma once

#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
DEVICE float sub(float a, float b) { return __fsub_rn(a, b); }
DEVICE float mul(float a, float b) { return __fmul_rn(a, b); }
DEVICE float div(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float root(float a) { return __fsqrt_rn(a); }
DEVICE float negative(float a) { return -a; }

DEVICE double add(double a, double b) { return __dadd_rn(a, b); }
DEVICE double sub(double a, double b) { return __dsub_rn(a, b); }
DEVICE double mul(double a, double b) { return __dmul_rn(a, b); }
DEVICE double div(double a, double b) { return __ddiv_rn(a, b); }
DEVICE double root(double a) { return __dsqrt_rn(a); }
DEVICE double negative(double a) { return -a; }

// Integers wrap.
DEVICE u32 add(u32 a, u32 b) { return a + b; }
DEVICE u64 add(u64 a, u64 b) { return a + b; }

DEVICE u32 bits_of(float a) { return __float_as_uint(a); }
DEVICE u64 bits_of(double a) { return (u64)__double_as_longlong(a); }
DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }
DEVICE double double_of(u64 bits) { return __longlong_as_double((long long)bits); }

DEVICE float magnitude(float a) { return float_of(bits_of(a) & 0x7FFFFFFFu); }
DEVICE double magnitude(double a) { return double_of(bits_of(a) & 0x7FFFFFFFFFFFFFFFull); }

// `then` where a > b, else `otherwise`; no NaN is greater than anything.
template <class T> DEVICE T if_greater(T a, T b, T then, T otherwise) {
  return a > b ? then : otherwise;
}

// A number rounded to the type that a formula calculates with.
DEVICE void round_number(float &to, double constant) { to = __double2float_rn(constant); }
DEVICE void round_number(double &to, double constant) { to = constant; }

// The value of an f16; a signalling NaN becomes quiet.
DEVICE float f16_to_f32(u32 bits) {
  const u32 sign = (bits & 0x8000) << 16, rest = bits & 0x7FFF;
  u32 magnitude = (rest << 13) + (112u << 23);
  if (rest > 0x7C00) magnitude = 0x7FC00000u | rest << 13;
  if (rest == 0x7C00) magnitude = 0x7F800000u;
  // Subnormal numbers are multiples of 2^-24, which f32 has as normal numbers.
  if (rest < 0x0400) magnitude = bits_of(mul(__uint2float_rn(rest), float_of(0x33800000u)));
  return float_of(sign | magnitude);
}

// The nearest f16, ties to even; a NaN keeps its sign and top bits and becomes quiet.
DEVICE u32 f32_to_f16(float value) {
  const u32 bits = bits_of(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7FFFFFFFu;
  // 2^-14 and above: normal numbers. The carry of the rounding moves into the exponent.
  u32 magnitude = (rest - (112u << 23) + 0xFFF + (rest >> 13 & 1)) >> 13;
  // Adding 0.5 rounds at 2^-24, the unit of subnormal f16.
  if (rest < 0x38800000u) magnitude = bits_of(add(float_of(rest), 0.5f)) - 0x3F000000u;
  // 65520 and above round to infinity.
  if (rest >= 0x477FF000u) magnitude = 0x7C00;
  if (rest > 0x7F800000u) magnitude = 0x7E00 | (rest >> 13 & 0x3FF);
  return sign | magnitude;
}

// The value of a bf16.
DEVICE float bf16_to_f32(u32 bits) { return float_of(bits << 16); }

// The nearest bf16, ties to even; a NaN keeps its sign and top bits and becomes quiet.
DEVICE u32 f32_to_bf16(float value) {
  const u32 bits = bits_of(value);
  const u32 rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  return (bits & 0x7FFFFFFFu) > 0x7F800000u ? bits >> 16 | 0x40 : rounded;
}

// The f32 next to an f64 that rounds like the f64 itself when rounded again to 22 bits or fewer:
// inexact results are rounded to odd.
DEVICE float f64_to_f32_odd(double value) {
  const float near = __double2float_rn(value);
  const double wide = near;
  if (wide == value || value != value) return near;
  const u32 toward_zero = bits_of(near) - (magnitude(wide) > magnitude(value) ? 1 : 0);
  return float_of(toward_zero | 1);
}
