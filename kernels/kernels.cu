// All kernels. `make kernels` compiles this file to src/device/ptx, one file a kernel.
#include "layout.cuh"
#include "merge.cuh"
#include "norm.cuh"
#include "rules.h"
#include "sum.cuh"

KERNEL assign_f32(PARAMETERS) { assign<F32>(ARGUMENTS); }
KERNEL assign_f64(PARAMETERS) { assign<F64>(ARGUMENTS); }
KERNEL assign_f16(PARAMETERS) { assign<F16>(ARGUMENTS); }
KERNEL assign_bf16(PARAMETERS) { assign<BF16>(ARGUMENTS); }
KERNEL assign_i8(PARAMETERS) { assign<I8>(ARGUMENTS); }
KERNEL assign_i16(PARAMETERS) { assign<I16>(ARGUMENTS); }
KERNEL assign_i32(PARAMETERS) { assign<I32>(ARGUMENTS); }
KERNEL assign_i64(PARAMETERS) { assign<I64>(ARGUMENTS); }

FORMULAS(MERGES)
MEASURED(MEASURES)
KEY_NUMBERS(KEY_NUMBER)
ROW_NUMBERS(ROW_NUMBER)
ROW_FORMULAS(MERGES_OF_ROWS)

KERNEL copy_8(PARAMETERS) { copy<Same<u8>, Same<u8>>(ARGUMENTS); }
KERNEL copy_16(PARAMETERS) { copy<Same<u16>, Same<u16>>(ARGUMENTS); }
KERNEL copy_32(PARAMETERS) { copy<Same<u32>, Same<u32>>(ARGUMENTS); }
KERNEL copy_64(PARAMETERS) { copy<Same<u64>, Same<u64>>(ARGUMENTS); }
KERNEL copy_f16_f32(PARAMETERS) { copy<F16, F32>(ARGUMENTS); }
KERNEL copy_f16_f64(PARAMETERS) { copy<F16, F64>(ARGUMENTS); }
KERNEL copy_f16_bf16(PARAMETERS) { copy<F16, BF16>(ARGUMENTS); }
KERNEL copy_bf16_f32(PARAMETERS) { copy<BF16, F32>(ARGUMENTS); }
KERNEL copy_bf16_f64(PARAMETERS) { copy<BF16, F64>(ARGUMENTS); }
KERNEL copy_bf16_f16(PARAMETERS) { copy<BF16, F16>(ARGUMENTS); }
KERNEL copy_f32_f16(PARAMETERS) { copy<F32, F16>(ARGUMENTS); }
KERNEL copy_f32_bf16(PARAMETERS) { copy<F32, BF16>(ARGUMENTS); }
KERNEL copy_f32_f64(PARAMETERS) { copy<F32, F64>(ARGUMENTS); }
KERNEL copy_f64_f16(PARAMETERS) { copy<F64, F16>(ARGUMENTS); }
KERNEL copy_f64_bf16(PARAMETERS) { copy<F64, BF16>(ARGUMENTS); }
KERNEL copy_f64_f32(PARAMETERS) { copy<F64, F32>(ARGUMENTS); }
