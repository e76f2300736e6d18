// The work of a launch: a list of jobs, so that one launch serves all keys of a call. The layout is
// a contract with the code that fills it.
//
// Every kernel has the same four parameters. `blocks` has two numbers for each block of the grid:
// the index of its job in `jobs`, and which chunk of the job it does. A block has THREADS threads.
// No kernel uses shared memory, barriers, atomics or warp operations, and no two threads write to
// one address, so results do not depend on the order of threads and blocks.
#pragma once

#include "element.cuh"

// Threads of a block.
const u32 THREADS = 256;

// Elements of a chunk, unless a kernel says otherwise.
const u32 CHUNK = 4096;

// Arrays of state that a formula may keep: MAX_STATES of src/kernel/rule.rs.
const u32 MAX_STATES = 3;

struct Job {
  // Elements.
  u64 count;
  // Address of the value: of the elements' type, or f32 where it is the master of f16 or bf16.
  u64 value;
  // Addresses of the states, f64 for f64, else f32. A formula uses as many as it has.
  u64 states[MAX_STATES];
  // How many arrays are added up, and how many receive the result.
  u32 inputs, outs;
  // Where the job begins in `addresses`: its inputs, its outs, then extents where its kernel has
  // some.
  u32 addresses;
  // Where the job begins in `constants`: the formula's numbers, in the order of its calls of
  // Number::of.
  u32 constants;
};
static_assert(sizeof(Job) == 56, "the code that fills jobs has the same layout");

// Some addresses of a job. The first stays in a register: a store could change it, as far as the
// compiler knows, so that it would be read again for each group.
struct Addresses {
  const u64 *all;
  u32 count;
  u64 first;

  DEVICE_MEMBER Addresses(const u64 *all, u32 count)
      : all(all), count(count), first(count > 0 ? all[0] : 0) {}

  DEVICE_MEMBER u64 at(u32 index) const { return index == 0 ? first : all[index]; }
};

#define PARAMETERS \
  const Job *jobs, const u64 *addresses, const double *constants, const u32 *blocks
#define ARGUMENTS jobs, addresses, constants, blocks
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)
