/* Conversions between the four float types: one rounding to the nearest, ties to even. */
#include "numbers.h"
#include "support.h"

/* One array in two float types, as a key and as an out or a value of it. */
typedef struct pair {
    kv_dtype from, to;
    size_t count;
    void *data, *got, *wanted;
} pair;

static void pair_create(pair *at, kv_dtype from, kv_dtype to, size_t count) {
    at->from = from;
    at->to = to;
    at->count = count;
    at->data = malloc(count * dtype_size(from));
    at->got = malloc(count * dtype_size(to));
    at->wanted = malloc(count * dtype_size(to));
    CHECK(count == 0 || (at->data != NULL && at->got != NULL && at->wanted != NULL));
}

static void pair_free(pair *at) {
    free(at->data);
    free(at->got);
    free(at->wanted);
}

static void set_wanted(pair *at) {
    for (size_t i = 0; i < at->count; i++) {
        uint64_t bits = load_bits(at->from, (char *)at->data + i * dtype_size(at->from));
        save_bits(at->to, (char *)at->wanted + i * dtype_size(at->to),
                  convert_bits(at->from, bits, at->to));
    }
}

/* A key of the one type is pulled into an out of the other. */
static void check_pull(kv_store *store, kv_key key, pair *at) {
    int64_t shape[] = {(int64_t)at->count};
    kv_tensor value = kv_tensor_cpu(at->data, at->from, 1, shape);
    kv_tensor out = kv_tensor_cpu(at->got, at->to, 1, shape);
    memset(at->got, 0x5a, at->count * dtype_size(at->to));
    set_wanted(at);
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
    CHECK(same_elements(at->to, at->got, at->wanted, at->count));
    CHECK_STATUS(kv_remove(store, &key, 1), KV_OK);
}

/* A value of the one type is pushed to a key of the other. */
static void check_push(kv_store *store, kv_key key, pair *at) {
    int64_t shape[] = {(int64_t)at->count};
    kv_tensor value = kv_tensor_cpu(at->data, at->from, 1, shape);
    kv_tensor out = kv_tensor_cpu(at->got, at->to, 1, shape);
    memset(at->got, 0, at->count * dtype_size(at->to));
    set_wanted(at);
    CHECK_STATUS(kv_init(store, &key, &out, 1), KV_OK);
    CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL), KV_OK);
    CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
    CHECK(same_elements(at->to, at->got, at->wanted, at->count));
    CHECK_STATUS(kv_remove(store, &key, 1), KV_OK);
}

/* All 65,536 elements of a 16-bit type. */
static void every_element_of_the_small_types(kv_store *store) {
    static const kv_dtype small[] = {KV_F16, KV_BF16};
    for (int i = 0; i < 2; i++) {
        for (int to = 0; to < FLOAT_DTYPE_COUNT; to++) {
            pair at;
            pair_create(&at, small[i], FLOAT_DTYPES[to], 65536);
            for (size_t bits = 0; bits < at.count; bits++) {
                ((uint16_t *)at.data)[bits] = (uint16_t)bits;
            }
            check_pull(store, 1, &at);
            check_push(store, 1, &at);
            pair_free(&at);
        }
    }
}

/*
 * Around every border of the narrow type: for each of its elements the exact half way to the
 * next one, and the neighbours of that half way in the wide type. A conversion that rounds twice,
 * or the wrong way on a tie, differs here.
 */
static void every_half_way_between_small_elements(kv_store *store, kv_dtype from, kv_dtype to) {
    pair at;
    size_t size = dtype_size(from), last = (size_t)infinity_bits(to);
    long step = scaled(1, 7);
    pair_create(&at, from, to, (last / (size_t)step + 1) * 6);
    size_t index = 0;
    for (size_t bits = 0; bits < last && index + 6 <= at.count; bits += (size_t)step) {
        /* The step below the largest element is as wide as the one above it would be. */
        double low = decode_float(to, bits);
        double high = bits + 1 < last ? decode_float(to, bits + 1)
                                      : 2 * low - decode_float(to, bits - 1);
        uint64_t middle = encode_float(from, low / 2 + high / 2);
        for (uint64_t sign = 0; sign < 2; sign++) {
            for (int64_t beside = -1; beside <= 1; beside++) {
                save_bits(from, (char *)at.data + index++ * size,
                          (uint64_t)((int64_t)middle + beside) | sign * sign_bit(from));
            }
        }
    }
    at.count = index;
    check_pull(store, 1, &at);
    check_push(store, 1, &at);
    pair_free(&at);
}

static void random_elements_of_all_sizes(kv_store *store) {
    static const size_t sizes[] = {0, 1, 3, 8, 15, 16, 17, 31, 33, 100, 1000, 70001};
    uint64_t random = 11;
    for (int from = 0; from < FLOAT_DTYPE_COUNT; from++) {
        for (int to = 0; to < FLOAT_DTYPE_COUNT; to++) {
            for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                pair at;
                pair_create(&at, FLOAT_DTYPES[from], FLOAT_DTYPES[to], sizes[i]);
                fill_random(at.from, at.data, at.count, &random);
                check_pull(store, 1, &at);
                check_push(store, 1, &at);
                pair_free(&at);
            }
        }
    }
}

/* 1 + 2^-11 + 2^-40 is above the half way of float16; by way of float32 it would be a tie. */
static void float64_is_not_rounded_twice(kv_store *store) {
    static const struct {
        kv_dtype to;
        double value, wanted;
    } cases[] = {
        {KV_F16, 1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-10},
        {KV_F16, 1 + 0x1p-11, 1},
        {KV_F16, -(1 + 0x1p-11 + 0x1p-40), -(1 + 0x1p-10)},
        {KV_BF16, 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-7},
        {KV_BF16, 1 + 0x1p-8, 1},
        {KV_F16, 0x1p-25, 0},
        {KV_F16, 0x1p-25 + 0x1p-70, 0x1p-24},
        {KV_F16, 65520 - 0x1p-30, 65504},
        {KV_F16, 65520, INFINITY},
        {KV_F32, 1e300, INFINITY},
        {KV_F32, 0x1p-150, 0},
        {KV_F32, 0x1p-150 + 0x1p-200, 0x1p-149},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double got = NAN, data = cases[i].value;
        uint64_t narrow = 0;
        kv_key key = 1;
        kv_tensor value = kv_tensor_cpu(&data, KV_F64, 0, NULL);
        kv_tensor out = kv_tensor_cpu(&narrow, cases[i].to, 0, NULL);
        CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
        CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
        got = decode_float(cases[i].to, load_bits(cases[i].to, &narrow));
        CHECK(got == cases[i].wanted);
        CHECK_STATUS(kv_remove(store, &key, 1), KV_OK);
    }
}

/*
 * Each value is converted to the key's type first, then added. 0.5 + 2^-12 becomes 0.5, and
 * 2048 + 0.5 + 0.5 is a tie that goes down to 2048; the values as they are would give 2050.
 */
static void values_are_converted_before_they_are_added(kv_store *store) {
    uint16_t first = (uint16_t)encode_float(KV_F16, 2048), got = 0;
    float second = 0.5f + 0x1p-12f;
    double third = 0.5 + 0x1p-12;
    kv_key keys[] = {1, 1, 1};
    kv_tensor values[] = {kv_tensor_cpu(&first, KV_F16, 0, NULL),
                          kv_tensor_cpu(&second, KV_F32, 0, NULL),
                          kv_tensor_cpu(&third, KV_F64, 0, NULL)};
    kv_tensor out = kv_tensor_cpu(&got, KV_F16, 0, NULL);
    CHECK_STATUS(kv_init(store, keys, values, 1), KV_OK);
    CHECK_STATUS(kv_push(store, keys, values, 3, 0, NULL), KV_OK);
    CHECK_STATUS(kv_pull(store, keys, &out, 1, 0, NULL), KV_OK);
    CHECK(decode_float(KV_F16, got) == 2048);
    CHECK_STATUS(kv_remove(store, keys, 1), KV_OK);
}

static void strided_elements_are_converted_too(kv_store *store) {
    enum { ROWS = 37, COLUMNS = 41 };
    static float data[2 * ROWS * COLUMNS], plain[ROWS * COLUMNS];
    static uint16_t got[3 * ROWS * COLUMNS];
    int64_t shape[] = {ROWS, COLUMNS};
    int64_t in_strides[] = {2, -2 * ROWS}, out_strides[] = {-3 * COLUMNS, 3};
    uint64_t random = 21;
    kv_key key = 1;
    size_t first = 2 * ROWS * (COLUMNS - 1), out_first = (size_t)3 * COLUMNS * (ROWS - 1);
    kv_tensor value = kv_tensor_cpu(data + first, KV_F32, 2, shape);
    kv_tensor out = kv_tensor_cpu(got + out_first, KV_BF16, 2, shape);
    value.strides = in_strides;
    out.strides = out_strides;
    fill_random(KV_F32, data, 2 * ROWS * COLUMNS, &random);
    gather(KV_F32, plain, data + first, 2, shape, in_strides);
    memset(got, 0x5a, sizeof got);
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
    for (size_t i = 0; i < ROWS * COLUMNS; i++) {
        size_t row = i / COLUMNS, column = i % COLUMNS;
        size_t place = out_first - row * 3 * COLUMNS + column * 3;
        uint16_t wanted =
            (uint16_t)convert_bits(KV_F32, load_bits(KV_F32, &plain[i]), KV_BF16);
        CHECK(same_element(KV_BF16, &got[place], &wanted));
        CHECK(got[place + 1] == 0x5a5a && got[place + 2] == 0x5a5a);
    }
    CHECK_STATUS(kv_remove(store, &key, 1), KV_OK);
}

static void check_all(kv_store *store) {
    every_element_of_the_small_types(store);
    every_half_way_between_small_elements(store, KV_F32, KV_F16);
    every_half_way_between_small_elements(store, KV_F64, KV_F16);
    every_half_way_between_small_elements(store, KV_F32, KV_BF16);
    every_half_way_between_small_elements(store, KV_F64, KV_BF16);
    random_elements_of_all_sizes(store);
    float64_is_not_rounded_twice(store);
    values_are_converted_before_they_are_added(store);
    strided_elements_are_converted_too(store);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(10);
    check_all(open_store("local"));
    check_all(open_store("device"));
    check_all(open_with("isa", "scalar"));
    return check_passed("api_convert");
}
