/*
 * Sums: all dtypes, 1 to 9 values, sizes around every border, against the scalar loops of
 * numbers.h. Assign is in force, so that a pull shows the sum itself.
 */
#include "numbers.h"
#include "support.h"

enum { MOST_VALUES = 9 };

/* One key of `size` elements and the values that are pushed to it. */
typedef struct bench {
    kv_store *store;
    kv_dtype dtype;
    int64_t size;
    kv_key keys[MOST_VALUES];
    kv_tensor values[MOST_VALUES];
    void *data[MOST_VALUES];
    unsigned char *wanted, *got;
} bench;

static void bench_create(bench *at, kv_store *store, kv_key key, kv_dtype dtype, int64_t size,
                         uint64_t *random) {
    size_t bytes = (size_t)size * dtype_size(dtype);
    at->store = store;
    at->dtype = dtype;
    at->size = size;
    at->wanted = malloc(bytes + 1);
    at->got = malloc(bytes + 1);
    CHECK(at->wanted != NULL && at->got != NULL);
    for (int i = 0; i < MOST_VALUES; i++) {
        at->data[i] = malloc(bytes + 1);
        CHECK(at->data[i] != NULL);
        fill_random(dtype, at->data[i], (size_t)size, random);
        at->keys[i] = key;
        at->values[i] = kv_tensor_cpu(at->data[i], dtype, 1, &at->size);
    }
    CHECK_STATUS(kv_init(store, &key, &at->values[0], 1), KV_OK);
}

static void bench_free(bench *at) {
    for (int i = 0; i < MOST_VALUES; i++) {
        free(at->data[i]);
    }
    free(at->wanted);
    free(at->got);
}

/* Pushes the first `count` values and compares what is stored then. */
static void check_sum(bench *at, size_t count) {
    kv_tensor out = kv_tensor_cpu(at->got, at->dtype, 1, &at->size);
    size_t size = dtype_size(at->dtype);
    for (size_t i = 0; i < (size_t)at->size; i++) {
        save_bits(at->dtype, at->wanted + i * size,
                  sum_elements(at->dtype, at->data, count, i));
    }
    memset(at->got, 0x5a, (size_t)at->size * size);
    CHECK_STATUS(kv_push(at->store, at->keys, at->values, count, 0, NULL), KV_OK);
    CHECK_STATUS(kv_pull(at->store, at->keys, &out, 1, 0, NULL), KV_OK);
    if (count == 1) {
        CHECK(memcmp(at->got, at->wanted, (size_t)at->size * size) == 0);
    } else {
        CHECK(same_elements(at->dtype, at->got, at->wanted, (size_t)at->size));
    }
}

static void every_dtype_count_and_size(const char *type) {
    int64_t sizes[] = {0, 1, 7, 63, 64, 65, 1000, 4097, scaled(100003, 9001)};
    kv_store *store = open_store(type);
    uint64_t random = 2026;
    kv_key key = 0;
    for (int d = 0; d < DTYPE_COUNT; d++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            bench at;
            bench_create(&at, store, key++, DTYPES[d], sizes[s], &random);
            for (size_t count = 1; count <= MOST_VALUES; count++) {
                check_sum(&at, count);
            }
            bench_free(&at);
        }
    }
    kv_free(store);
}

/* Threads and instruction set change no bit; 300,007 elements are more than one thread's share. */
static void settings_change_no_bit(const char *option, const char *value) {
    int64_t sizes[] = {65, 4097, scaled(300007, 20011)};
    kv_store *store = open_with(option, value);
    uint64_t random = 7;
    kv_key key = 0;
    for (int d = 0; d < DTYPE_COUNT; d++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            bench at;
            bench_create(&at, store, key++, DTYPES[d], sizes[s], &random);
            check_sum(&at, 2);
            check_sum(&at, 5);
            bench_free(&at);
        }
    }
    kv_free(store);
}

/* 2^24 + 1 + 1 is 2^24 from the left and 2^24 + 2 from the right. */
static void values_are_added_left_to_right(const char *type) {
    float data[] = {16777216, 1, 1}, got = 0;
    double wide[] = {9007199254740992, 1, 1}, wide_got = 0;
    kv_key keys[] = {1, 1, 1}, wide_keys[] = {2, 2, 2};
    kv_tensor values[3], backwards[3], wides[3];
    kv_tensor out = kv_tensor_cpu(&got, KV_F32, 0, NULL);
    kv_tensor wide_out = kv_tensor_cpu(&wide_got, KV_F64, 0, NULL);
    for (int i = 0; i < 3; i++) {
        values[i] = kv_tensor_cpu(&data[i], KV_F32, 0, NULL);
        backwards[i] = kv_tensor_cpu(&data[2 - i], KV_F32, 0, NULL);
        wides[i] = kv_tensor_cpu(&wide[i], KV_F64, 0, NULL);
    }
    kv_store *store = open_store(type);
    CHECK_STATUS(kv_init(store, keys, values, 1), KV_OK);
    CHECK_STATUS(kv_push(store, keys, values, 3, 0, NULL), KV_OK);
    CHECK_STATUS(kv_pull(store, keys, &out, 1, 0, NULL), KV_OK);
    CHECK(got == 16777216);
    CHECK_STATUS(kv_push(store, keys, backwards, 3, 0, NULL), KV_OK);
    CHECK_STATUS(kv_pull(store, keys, &out, 1, 0, NULL), KV_OK);
    CHECK(got == 16777218);
    CHECK_STATUS(kv_init(store, wide_keys, wides, 1), KV_OK);
    CHECK_STATUS(kv_push(store, wide_keys, wides, 3, 0, NULL), KV_OK);
    CHECK_STATUS(kv_pull(store, wide_keys, &wide_out, 1, 0, NULL), KV_OK);
    CHECK(wide_got == 9007199254740992);
    kv_free(store);
}

/* 2048 + 1 + 1 is 2050 when added in float32, and 2048 if each step were rounded to float16. */
static void sixteen_bit_floats_are_rounded_once(const char *type) {
    static const struct {
        kv_dtype dtype;
        double first, each, sum;
    } cases[] = {
        {KV_F16, 2048, 1, 2050},
        {KV_F16, 65504, 8, INFINITY}, /* 65520 rounds up; each step alone would round down */
        {KV_BF16, 256, 1, 258},
    };
    kv_store *store = open_store(type);
    for (kv_key key = 0; key < sizeof cases / sizeof cases[0]; key++) {
        kv_dtype dtype = cases[key].dtype;
        uint16_t first = (uint16_t)encode_float(dtype, cases[key].first);
        uint16_t each = (uint16_t)encode_float(dtype, cases[key].each), got = 0;
        kv_tensor values[] = {kv_tensor_cpu(&first, dtype, 0, NULL),
                              kv_tensor_cpu(&each, dtype, 0, NULL),
                              kv_tensor_cpu(&each, dtype, 0, NULL)};
        kv_tensor out = kv_tensor_cpu(&got, dtype, 0, NULL);
        kv_key keys[] = {key, key, key};
        CHECK_STATUS(kv_init(store, keys, values, 1), KV_OK);
        CHECK_STATUS(kv_push(store, keys, values, 3, 0, NULL), KV_OK);
        CHECK_STATUS(kv_pull(store, keys, &out, 1, 0, NULL), KV_OK);
        CHECK(decode_float(dtype, got) == cases[key].sum);
    }
    kv_free(store);
}

static void integers_wrap(const char *type) {
    int8_t small[] = {100, 100, 100}, small_got = 0;
    uint8_t byte[] = {200, 100, 1}, byte_got = 0;
    int32_t middle[] = {INT32_MAX, 1, 0}, middle_got = 0;
    int64_t large[] = {INT64_MIN, -1, 0}, large_got = 0;
    struct {
        kv_dtype dtype;
        void *data, *got;
    } cases[] = {{KV_I8, small, &small_got},
                 {KV_U8, byte, &byte_got},
                 {KV_I32, middle, &middle_got},
                 {KV_I64, large, &large_got}};
    kv_store *store = open_store(type);
    for (kv_key key = 0; key < 4; key++) {
        kv_key keys[] = {key, key, key};
        kv_tensor values[3], out = kv_tensor_cpu(cases[key].got, cases[key].dtype, 0, NULL);
        for (size_t i = 0; i < 3; i++) {
            char *element = (char *)cases[key].data + i * dtype_size(cases[key].dtype);
            values[i] = kv_tensor_cpu(element, cases[key].dtype, 0, NULL);
        }
        CHECK_STATUS(kv_init(store, keys, values, 1), KV_OK);
        CHECK_STATUS(kv_push(store, keys, values, 3, 0, NULL), KV_OK);
        CHECK_STATUS(kv_pull(store, keys, &out, 1, 0, NULL), KV_OK);
    }
    CHECK(small_got == 44);
    CHECK(byte_got == 45);
    CHECK(middle_got == INT32_MIN);
    CHECK(large_got == INT64_MAX);
    kv_free(store);
}

/* A sum starts with its first value: 0 + (-0) would lose the sign. Any NaN in gives a NaN. */
static void zeros_keep_their_sign_and_nans_stay(const char *type) {
    kv_store *store = open_store(type);
    for (kv_key key = 0; key < FLOAT_DTYPE_COUNT; key++) {
        kv_dtype dtype = FLOAT_DTYPES[key];
        uint64_t zero = sign_bit(dtype), one = encode_float(dtype, 1), got = 0;
        uint64_t signalling = infinity_bits(dtype) | 1;
        kv_key keys[] = {key, key};
        kv_tensor values[] = {kv_tensor_cpu(&zero, dtype, 0, NULL),
                              kv_tensor_cpu(&zero, dtype, 0, NULL)};
        kv_tensor out = kv_tensor_cpu(&got, dtype, 0, NULL);
        CHECK_STATUS(kv_init(store, keys, values, 1), KV_OK);
        CHECK_STATUS(kv_push(store, keys, values, 2, 0, NULL), KV_OK);
        CHECK_STATUS(kv_pull(store, keys, &out, 1, 0, NULL), KV_OK);
        CHECK(got == sign_bit(dtype));
        for (size_t place = 0; place < 2; place++) {
            values[place].data = &signalling;
            values[1 - place].data = &one;
            CHECK_STATUS(kv_push(store, keys, values, 2, 0, NULL), KV_OK);
            CHECK_STATUS(kv_pull(store, keys, &out, 1, 0, NULL), KV_OK);
            CHECK(bits_are_nan(dtype, got));
        }
    }
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(10);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        every_dtype_count_and_size(STORE_TYPES[i]);
        values_are_added_left_to_right(STORE_TYPES[i]);
        sixteen_bit_floats_are_rounded_once(STORE_TYPES[i]);
        integers_wrap(STORE_TYPES[i]);
        zeros_keep_their_sign_and_nans_stay(STORE_TYPES[i]);
    }
    settings_change_no_bit("threads", "1");
    settings_change_no_bit("threads", "4");
    settings_change_no_bit("isa", "scalar");
    return check_passed("api_sum");
}
