// All kernels. `make kernels` compiles this file to src/device/ptx, one file a kernel.
#include "merge.cuh"
#include "norm.cuh"
#include "rules.h"
#include "sum.cuh"

KERNEL assign_f32(PARAMETERS) { assign<F32>(ARGUMENTS); }
KERNEL assign_f64(PARAMETERS) { assign<F64>(ARGUMENTS); }
KERNEL assign_f16(PARAMETERS) { assign<F16>(ARGUMENTS); }
KERNEL assign_bf16(PARAMETERS) { assign<BF16>(ARGUMENTS); }
KERNEL assign_i8(PARAMETERS) { assign<I8>(ARGUMENTS); }
KERNEL assign_i32(PARAMETERS) { assign<I32>(ARGUMENTS); }
KERNEL assign_i64(PARAMETERS) { assign<I64>(ARGUMENTS); }

FORMULAS(MERGES)
MEASURED(MEASURES)
