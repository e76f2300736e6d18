/*
 * numbers.h - what the library's numbers are compared with: scalar loops over every dtype.
 *
 * Every float format here fits into a double, so that one decoder and one encoder, which rounds
 * once to the nearest value with ties to even, describe all of them.
 */
#ifndef NUMBERS_H
#define NUMBERS_H

#include "check.h"

#include <math.h>
#include <string.h>

/* Those whose values are added; api_opaque.c has the others. */
static const kv_dtype DTYPES[] = {KV_I8,  KV_U8,  KV_I16, KV_U16, KV_I32,  KV_U32,
                                  KV_I64, KV_U64, KV_F16, KV_BF16, KV_F32, KV_F64};
enum { DTYPE_COUNT = 12 };

static const kv_dtype FLOAT_DTYPES[] = {KV_F16, KV_BF16, KV_F32, KV_F64};
enum { FLOAT_DTYPE_COUNT = 4 };

static inline size_t dtype_size(kv_dtype dtype) {
    return (dtype >> 8 & 0xff) / 8;
}

static inline int dtype_is_float(kv_dtype dtype) {
    return (dtype & 0xff) == 2 || (dtype & 0xff) == 4;
}

/* Bits of the fraction that are stored. */
static inline int dtype_fraction(kv_dtype dtype) {
    switch (dtype) {
    case KV_F16: return 10;
    case KV_BF16: return 7;
    case KV_F32: return 23;
    default: return 52;
    }
}

/* The exponent of 1.0 as it is stored. */
static inline int dtype_bias(kv_dtype dtype) {
    switch (dtype) {
    case KV_F16: return 15;
    case KV_F64: return 1023;
    default: return 127;
    }
}

/* One element as a number of its width; memory is read byte by byte, so that any base works. */
static inline uint64_t load_bits(kv_dtype dtype, const void *from) {
    uint8_t bits8;
    uint16_t bits16;
    uint32_t bits32;
    uint64_t bits64;
    switch (dtype_size(dtype)) {
    case 1: memcpy(&bits8, from, sizeof bits8); return bits8;
    case 2: memcpy(&bits16, from, sizeof bits16); return bits16;
    case 4: memcpy(&bits32, from, sizeof bits32); return bits32;
    default: memcpy(&bits64, from, sizeof bits64); return bits64;
    }
}

static inline void save_bits(kv_dtype dtype, void *to, uint64_t bits) {
    uint8_t bits8 = (uint8_t)bits;
    uint16_t bits16 = (uint16_t)bits;
    uint32_t bits32 = (uint32_t)bits;
    switch (dtype_size(dtype)) {
    case 1: memcpy(to, &bits8, sizeof bits8); break;
    case 2: memcpy(to, &bits16, sizeof bits16); break;
    case 4: memcpy(to, &bits32, sizeof bits32); break;
    default: memcpy(to, &bits, sizeof bits); break;
    }
}

/* The bits of infinity; anything above, without its sign, is a NaN. */
static inline uint64_t infinity_bits(kv_dtype dtype) {
    return (uint64_t)(2 * dtype_bias(dtype) + 1) << dtype_fraction(dtype);
}

static inline uint64_t sign_bit(kv_dtype dtype) {
    return (uint64_t)1 << (dtype_size(dtype) * 8 - 1);
}

static inline int bits_are_nan(kv_dtype dtype, uint64_t bits) {
    return dtype_is_float(dtype) && (bits & ~sign_bit(dtype)) > infinity_bits(dtype);
}

/* The value of an element of a float dtype, exactly. */
static inline double decode_float(kv_dtype dtype, uint64_t bits) {
    int fraction_bits = dtype_fraction(dtype);
    uint64_t magnitude = bits & ~sign_bit(dtype);
    uint64_t fraction = magnitude & (((uint64_t)1 << fraction_bits) - 1);
    int exponent = (int)(magnitude >> fraction_bits);
    double value;
    if (magnitude > infinity_bits(dtype)) {
        return (double)NAN;
    }
    if (magnitude == infinity_bits(dtype)) {
        value = (double)INFINITY;
    } else if (exponent == 0) {
        value = ldexp((double)fraction, 1 - dtype_bias(dtype) - fraction_bits);
    } else {
        value = ldexp((double)(fraction | (uint64_t)1 << fraction_bits),
                      exponent - dtype_bias(dtype) - fraction_bits);
    }
    return (bits & sign_bit(dtype)) != 0 ? -value : value;
}

/* The bits of the element of a float dtype that is nearest to `value`, ties to even. */
static inline uint64_t encode_float(kv_dtype dtype, double value) {
    int fraction_bits = dtype_fraction(dtype);
    uint64_t sign = signbit(value) ? sign_bit(dtype) : 0;
    double magnitude = fabs(value);
    if (dtype == KV_F64) {
        return load_bits(KV_F64, &value);
    }
    if (isnan(value)) {
        return infinity_bits(dtype) | (uint64_t)1 << (fraction_bits - 1);
    }
    if (isinf(value) || magnitude == 0) {
        return sign | (isinf(value) ? infinity_bits(dtype) : 0);
    }
    int exponent;
    frexp(magnitude, &exponent);
    exponent += dtype_bias(dtype) - 1; /* as stored, if the value is not below the normal ones */
    if (exponent < 1) {
        exponent = 1;
    }
    /* In units of the last place; scaling by a power of two is exact here. */
    double units = ldexp(magnitude, dtype_bias(dtype) + fraction_bits - exponent);
    double whole = floor(units);
    if (units - whole > 0.5 || (units - whole == 0.5 && fmod(whole, 2) != 0)) {
        whole += 1;
    }
    /* The leading bit of a normal value, and a carry out of the fraction, raise the exponent. */
    uint64_t bits = ((uint64_t)(exponent - 1) << fraction_bits) + (uint64_t)whole;
    return sign | (bits < infinity_bits(dtype) ? bits : infinity_bits(dtype));
}

/* One element of `from` as an element of `to`: floats with one rounding, else bit for bit. */
static inline uint64_t convert_bits(kv_dtype from, uint64_t bits, kv_dtype to) {
    return from == to ? bits : encode_float(to, decode_float(from, bits));
}

/* a + b of two elements, but not of 16-bit floats: see sum_elements(). */
static inline uint64_t add_bits(kv_dtype dtype, uint64_t a, uint64_t b) {
    if (dtype == KV_F32) {
        float left, right;
        save_bits(KV_F32, &left, a), save_bits(KV_F32, &right, b);
        left += right;
        return load_bits(KV_F32, &left);
    }
    if (dtype == KV_F64) {
        double left, right;
        save_bits(KV_F64, &left, a), save_bits(KV_F64, &right, b);
        left += right;
        return load_bits(KV_F64, &left);
    }
    return a + b; /* wraps; save_bits() drops what does not fit */
}

/*
 * The sum of one element of each of `count` values, left to right, rounded once to the dtype.
 * float16 and bfloat16 are added in float32; one value is taken bit for bit.
 */
static inline uint64_t sum_elements(kv_dtype dtype, void *const *values, size_t count,
                                    size_t index) {
    size_t at = index * dtype_size(dtype);
    uint64_t sum = load_bits(dtype, (const char *)values[0] + at);
    if (count == 1) {
        return sum;
    }
    if (dtype == KV_F16 || dtype == KV_BF16) {
        float total = (float)decode_float(dtype, sum);
        for (size_t i = 1; i < count; i++) {
            total += (float)decode_float(dtype, load_bits(dtype, (const char *)values[i] + at));
        }
        return encode_float(dtype, (double)total);
    }
    for (size_t i = 1; i < count; i++) {
        sum = add_bits(dtype, sum, load_bits(dtype, (const char *)values[i] + at));
    }
    return sum;
}

/* Equal bit for bit; a NaN equals any NaN. */
static inline int same_element(kv_dtype dtype, const void *a, const void *b) {
    uint64_t left = load_bits(dtype, a), right = load_bits(dtype, b);
    return left == right || (bits_are_nan(dtype, left) && bits_are_nan(dtype, right));
}

static inline int same_elements(kv_dtype dtype, const void *a, const void *b, size_t count) {
    size_t size = dtype_size(dtype);
    if (memcmp(a, b, count * size) == 0) {
        return 1;
    }
    for (size_t i = 0; i < count; i++) {
        if (!same_element(dtype, (const char *)a + i * size, (const char *)b + i * size)) {
            fprintf(stderr, "element %zu of %zu: %#llx, expected %#llx\n", i, count,
                    (unsigned long long)load_bits(dtype, (const char *)a + i * size),
                    (unsigned long long)load_bits(dtype, (const char *)b + i * size));
            return 0;
        }
    }
    return 1;
}

/* splitmix64: the same numbers in every run. */
static inline uint64_t next_random(uint64_t *state) {
    uint64_t bits = *state += 0x9e3779b97f4a7c15ULL;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9ULL;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebULL;
    return bits ^ bits >> 31;
}

/* Uniform in [-1, 1). */
static inline double next_uniform(uint64_t *state) {
    return ldexp((double)(next_random(state) >> 11), -52) - 1;
}

/*
 * Mostly ordinary numbers of differing sizes, whose sums need rounding; among them any bits at
 * all, and the ends of the format: zeros, infinities, the smallest and the largest.
 */
static inline uint64_t random_element(kv_dtype dtype, uint64_t *state) {
    uint64_t choice = next_random(state);
    uint64_t bits = next_random(state);
    if (!dtype_is_float(dtype) || choice % 16 == 0) {
        return bits;
    }
    if (choice % 16 == 1) {
        uint64_t ends[] = {0, 1, infinity_bits(dtype), infinity_bits(dtype) - 1,
                           (uint64_t)1 << dtype_fraction(dtype)};
        return ends[choice / 16 % 5] | (bits & sign_bit(dtype));
    }
    return encode_float(dtype, ldexp(next_uniform(state), (int)(choice / 16 % 12)));
}

static inline void fill_random(kv_dtype dtype, void *data, size_t count, uint64_t *state) {
    size_t size = dtype_size(dtype);
    for (size_t i = 0; i < count; i++) {
        save_bits(dtype, (char *)data + i * size, random_element(dtype, state));
    }
}

/* Copies a strided array of up to three dimensions into a row-major one. */
static inline void gather(kv_dtype dtype, void *to, const void *from, int ndim,
                          const int64_t *shape, const int64_t *strides) {
    int64_t extent[3] = {1, 1, 1}, stride[3] = {0, 0, 0};
    size_t size = dtype_size(dtype);
    char *next = to;
    for (int i = 0; i < ndim; i++) {
        extent[3 - ndim + i] = shape[i];
        stride[3 - ndim + i] = strides[i];
    }
    for (int64_t i = 0; i < extent[0]; i++) {
        for (int64_t j = 0; j < extent[1]; j++) {
            for (int64_t k = 0; k < extent[2]; k++) {
                int64_t offset = i * stride[0] + j * stride[1] + k * stride[2];
                memcpy(next, (const char *)from + offset * (int64_t)size, size);
                next += size;
            }
        }
    }
}

#endif /* NUMBERS_H */
