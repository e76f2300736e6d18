/* kv_tensor has the layout of DLPack's DLTensor, and kv_dtype the bits of a DLDataType. */

#include <dlpack/dlpack.h>
#include <kvstore.h>
#include <stdio.h>
#include <string.h>

static int failures;

static void same(const char *what, size_t ours, size_t theirs) {
    if (ours != theirs) {
        printf("%s: ours %zu, DLPack %zu\n", what, ours, theirs);
        failures++;
    }
}

#define SAME_FIELD(field)                                                                      \
    do {                                                                                       \
        same("offset of " #field, offsetof(kv_tensor, field), offsetof(DLTensor, field));      \
        same("size of " #field, sizeof((kv_tensor *)0)->field, sizeof((DLTensor *)0)->field);  \
    } while (0)

static void check_structures(void) {
    same("size of tensor", sizeof(kv_tensor), sizeof(DLTensor));
    SAME_FIELD(data);
    SAME_FIELD(device);
    SAME_FIELD(ndim);
    SAME_FIELD(dtype);
    SAME_FIELD(shape);
    SAME_FIELD(strides);
    SAME_FIELD(byte_offset);
    same("size of device", sizeof(kv_device), sizeof(DLDevice));
    same("offset of device type", offsetof(kv_device, type), offsetof(DLDevice, device_type));
    same("offset of device id", offsetof(kv_device, id), offsetof(DLDevice, device_id));
}

static void same_dtype(const char *what, kv_dtype ours, int code, int bits) {
    DLDataType theirs = {(uint8_t)code, (uint8_t)bits, 1};
    kv_dtype theirs_as_ours;
    memcpy(&theirs_as_ours, &theirs, sizeof theirs_as_ours);
    same(what, (size_t)ours, (size_t)theirs_as_ours);
}

static void check_numbers(void) {
    same("size of dtype", sizeof(kv_dtype), sizeof(DLDataType));
    same_dtype("KV_I8", KV_I8, kDLInt, 8);
    same_dtype("KV_I32", KV_I32, kDLInt, 32);
    same_dtype("KV_I64", KV_I64, kDLInt, 64);
    same_dtype("KV_U8", KV_U8, kDLUInt, 8);
    same_dtype("KV_F16", KV_F16, kDLFloat, 16);
    same_dtype("KV_F32", KV_F32, kDLFloat, 32);
    same_dtype("KV_F64", KV_F64, kDLFloat, 64);
    same_dtype("KV_BF16", KV_BF16, kDLBfloat, 16);
    same_dtype("KV_I16", KV_I16, kDLInt, 16);
    same_dtype("KV_U16", KV_U16, kDLUInt, 16);
    same_dtype("KV_U32", KV_U32, kDLUInt, 32);
    same_dtype("KV_U64", KV_U64, kDLUInt, 64);
    same_dtype("KV_C64", KV_C64, kDLComplex, 64);
    same_dtype("KV_C128", KV_C128, kDLComplex, 128);
#if DLPACK_MAJOR_VERSION >= 1 || DLPACK_VERSION >= 80
    same_dtype("KV_BOOL", KV_BOOL, kDLBool, 8);
#endif
#if DLPACK_MAJOR_VERSION > 1 || (DLPACK_MAJOR_VERSION == 1 && DLPACK_MINOR_VERSION >= 1)
    same_dtype("KV_F8_E4M3FN", KV_F8_E4M3FN, kDLFloat8_e4m3fn, 8);
    same_dtype("KV_F8_E4M3FNUZ", KV_F8_E4M3FNUZ, kDLFloat8_e4m3fnuz, 8);
    same_dtype("KV_F8_E5M2", KV_F8_E5M2, kDLFloat8_e5m2, 8);
    same_dtype("KV_F8_E5M2FNUZ", KV_F8_E5M2FNUZ, kDLFloat8_e5m2fnuz, 8);
    same_dtype("KV_F8_E8M0FNU", KV_F8_E8M0FNU, kDLFloat8_e8m0fnu, 8);
#endif
    same("KV_CPU", KV_CPU, kDLCPU);
    same("KV_CUDA", KV_CUDA, kDLCUDA);
    same("KV_CUDA_HOST", KV_CUDA_HOST, kDLCUDAHost);
}

int main(void) {
    check_structures();
    check_numbers();
    printf("%d differences\n", failures);
    return failures != 0;
}
