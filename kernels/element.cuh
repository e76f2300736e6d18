// Elements in memory, and groups of them in registers. A thread loads and stores a group at once
// where the array allows it: 16 bytes of f32, f64, i32, i64 and of every state.
//
// Nothing indexes a group: its first element is used, then the group is turned by one element. So
// the code for an element exists once in a kernel, in a loop, and a group stays in registers.
#pragma once

#include "number.cuh"

// How many elements a thread takes at once, by the size of the number that it calculates with.
template <class Full> struct Lanes { static const int COUNT = 16 / sizeof(Full); };

// Numbers of consecutive elements.
template <class T, int N> DEVICE void turn(T (&numbers)[N], T last) {
#pragma unroll
  for (int i = 0; i + 1 < N; i++) numbers[i] = numbers[i + 1];
  numbers[N - 1] = last;
}

// Elements of 32 or 64 bits, a register each.
template <class Word, int N> struct Words {
  Word all[N];
  DEVICE_MEMBER Word first() const { return all[0]; }
  DEVICE_MEMBER void turn(Word last) { ::turn(all, last); }
};

// Elements of BITS bits, together in one register.
template <class Word, int BITS> struct Packed {
  Word all;
  DEVICE_MEMBER u32 first() const { return (u32)all & ((1u << BITS) - 1); }
  DEVICE_MEMBER void turn(u32 last) {
    all = all >> BITS | (Word)last << (8 * sizeof(Word) - BITS);
  }
};

typedef Words<u32, 4> Words32;
typedef Words<u64, 2> Words64;
typedef Packed<u64, 16> Packed16;
typedef Packed<u32, 8> Packed8;

// Loads and stores of global memory. A plain pointer is one to any kind of memory, which takes the
// processor longer; the compiler cannot know that addresses in a table are global.
DEVICE u32 load8(u64 address) {
  u32 bits;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(bits) : "l"(address) : "memory");
  return bits;
}
DEVICE u32 load16(u64 address) {
  u32 bits;
  asm volatile("ld.global.u16 %0, [%1];" : "=r"(bits) : "l"(address) : "memory");
  return bits;
}
DEVICE u32 load32(u64 address) {
  u32 bits;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(bits) : "l"(address) : "memory");
  return bits;
}
DEVICE u64 load64(u64 address) {
  u64 bits;
  asm volatile("ld.global.u64 %0, [%1];" : "=l"(bits) : "l"(address) : "memory");
  return bits;
}
DEVICE void store8(u64 address, u32 bits) {
  asm volatile("st.global.u8 [%0], %1;" : : "l"(address), "r"(bits) : "memory");
}
DEVICE void store16(u64 address, u32 bits) {
  asm volatile("st.global.u16 [%0], %1;" : : "l"(address), "r"(bits) : "memory");
}
DEVICE void store32(u64 address, u32 bits) {
  asm volatile("st.global.u32 [%0], %1;" : : "l"(address), "r"(bits) : "memory");
}
DEVICE void store64(u64 address, u64 bits) {
  asm volatile("st.global.u64 [%0], %1;" : : "l"(address), "l"(bits) : "memory");
}

DEVICE void load_whole(Words32 &to, u64 address) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.all[0]), "=r"(to.all[1]), "=r"(to.all[2]), "=r"(to.all[3])
               : "l"(address)
               : "memory");
}
DEVICE void load_whole(Words64 &to, u64 address) {
  asm volatile("ld.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(to.all[0]), "=l"(to.all[1])
               : "l"(address)
               : "memory");
}
DEVICE void load_whole(Packed16 &to, u64 address) { to.all = load64(address); }
DEVICE void load_whole(Packed8 &to, u64 address) { to.all = load32(address); }

DEVICE void store_whole(u64 address, const Words32 &from) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(address), "r"(from.all[0]), "r"(from.all[1]), "r"(from.all[2]),
                 "r"(from.all[3])
               : "memory");
}
DEVICE void store_whole(u64 address, const Words64 &from) {
  asm volatile("st.global.v2.u64 [%0], {%1, %2};"
               :
               : "l"(address), "l"(from.all[0]), "l"(from.all[1])
               : "memory");
}
DEVICE void store_whole(u64 address, const Packed16 &from) { store64(address, from.all); }
DEVICE void store_whole(u64 address, const Packed8 &from) { store32(address, from.all); }

// An element type: its Group in registers, one element of it in Memory, and the number of Full
// precision that sums and formulas calculate with. UNROLL is how many elements of a group are added
// up at once; conversions of f16 take too many instructions for more than one.
struct F32 {
  typedef float Full;
  typedef u32 Memory;
  typedef Words32 Group;
  static const int UNROLL = 4;
  DEVICE_MEMBER static float widen(u32 bits) { return float_of(bits); }
  DEVICE_MEMBER static u32 narrow(float number) { return bits_of(number); }
};

struct F64 {
  typedef double Full;
  typedef u64 Memory;
  typedef Words64 Group;
  static const int UNROLL = 2;
  DEVICE_MEMBER static double widen(u64 bits) { return double_of(bits); }
  DEVICE_MEMBER static u64 narrow(double number) { return bits_of(number); }
};

struct F16 {
  typedef float Full;
  typedef u16 Memory;
  typedef Packed16 Group;
  static const int UNROLL = 1;
  DEVICE_MEMBER static float widen(u32 bits) { return f16_to_f32(bits); }
  DEVICE_MEMBER static u32 narrow(float number) { return f32_to_f16(number); }
};

struct BF16 {
  typedef float Full;
  typedef u16 Memory;
  typedef Packed16 Group;
  static const int UNROLL = 4;
  DEVICE_MEMBER static float widen(u32 bits) { return bf16_to_f32(bits); }
  DEVICE_MEMBER static u32 narrow(float number) { return f32_to_bf16(number); }
};

// Integers, signed or not: both wrap to the same bits.
struct I8 {
  typedef u32 Full;
  typedef u8 Memory;
  typedef Packed8 Group;
  static const int UNROLL = 4;
  DEVICE_MEMBER static u32 widen(u32 bits) { return bits; }
  DEVICE_MEMBER static u32 narrow(u32 number) { return number & 0xFF; }
};

struct I16 {
  typedef u32 Full;
  typedef u16 Memory;
  typedef Packed16 Group;
  static const int UNROLL = 4;
  DEVICE_MEMBER static u32 widen(u32 bits) { return bits; }
  DEVICE_MEMBER static u32 narrow(u32 number) { return number & 0xFFFF; }
};

struct I32 {
  typedef u32 Full;
  typedef u32 Memory;
  typedef Words32 Group;
  static const int UNROLL = 4;
  DEVICE_MEMBER static u32 widen(u32 bits) { return bits; }
  DEVICE_MEMBER static u32 narrow(u32 number) { return number; }
};

struct I64 {
  typedef u64 Full;
  typedef u64 Memory;
  typedef Words64 Group;
  static const int UNROLL = 2;
  DEVICE_MEMBER static u64 widen(u64 bits) { return bits; }
  DEVICE_MEMBER static u64 narrow(u64 number) { return number; }
};

// The element type of states and masters.
template <class Full> struct Master { typedef F32 Element; };
template <> struct Master<double> { typedef F64 Element; };

// The bits of one element of an array.
template <class E> DEVICE auto element(u64 array, u64 at) {
  const u64 address = array + at * sizeof(typename E::Memory);
  if constexpr (sizeof(typename E::Memory) == 1) return load8(address);
  if constexpr (sizeof(typename E::Memory) == 2) return load16(address);
  if constexpr (sizeof(typename E::Memory) == 4) return load32(address);
  if constexpr (sizeof(typename E::Memory) == 8) return load64(address);
}
template <class E, class Bits> DEVICE void set_element(u64 array, u64 at, Bits bits) {
  const u64 address = array + at * sizeof(typename E::Memory);
  if constexpr (sizeof(typename E::Memory) == 1) store8(address, bits);
  if constexpr (sizeof(typename E::Memory) == 2) store16(address, bits);
  if constexpr (sizeof(typename E::Memory) == 4) store32(address, bits);
  if constexpr (sizeof(typename E::Memory) == 8) store64(address, bits);
}

// The elements of an array from one on. `left` is how many there are, from 1; the last is read for
// missing ones, which are not written. Arrays are aligned to their elements.
template <class E> DEVICE void load(typename E::Group &to, u64 array, u64 at, u32 left) {
  const u64 address = array + at * sizeof(typename E::Memory);
  const u32 count = Lanes<typename E::Full>::COUNT;
  if (left == count && address % sizeof(typename E::Group) == 0) {
    load_whole(to, address);
    return;
  }
  to = typename E::Group();
#pragma unroll 1
  for (u32 i = 0; i < count; i++) to.turn(element<E>(address, min(i, left - 1)));
}
template <class E> DEVICE void store(u64 array, u64 at, u32 left, typename E::Group from) {
  const u64 address = array + at * sizeof(typename E::Memory);
  const u32 count = Lanes<typename E::Full>::COUNT;
  if (left == count && address % sizeof(typename E::Group) == 0) {
    store_whole(address, from);
    return;
  }
#pragma unroll 1
  for (u32 i = 0; i < left; i++) {
    set_element<E>(address, i, from.first());
    from.turn(0);
  }
}
