/* kv_push: grouping, order, layouts, refusals. The numbers themselves are in api_sum.c. */
#include "numbers.h"
#include "support.h"

static void a_push_assigns(const char *type) {
    kv_store *store = open_store(type);
    init_number(store, 3, 2);
    CHECK_STATUS(push_number(store, 3, 8), KV_OK);
    CHECK(pull_number(store, 3) == 8);
    CHECK_STATUS(push_number(store, 3, 1), KV_OK);
    CHECK(pull_number(store, 3) == 1);
    kv_free(store);
}

/* Equal keys need not stand together; keys that are not named keep their values. */
static void equal_keys_are_summed_wherever_they_stand(const char *type) {
    kv_store *store = open_store(type);
    int64_t numbers[] = {1, 10, 100, 1000, 10000, 100000};
    kv_key keys[] = {9, 2, 9, 5, 2, 9};
    kv_tensor values[6];
    for (int i = 0; i < 6; i++) {
        values[i] = number_tensor(&numbers[i]);
    }
    init_number(store, 2, 0);
    init_number(store, 5, 0);
    init_number(store, 7, 77);
    init_number(store, 9, 0);
    CHECK_STATUS(kv_push(store, keys, values, 6, 0, NULL), KV_OK);
    CHECK(pull_number(store, 2) == 10010);
    CHECK(pull_number(store, 5) == 1000);
    CHECK(pull_number(store, 7) == 77);
    CHECK(pull_number(store, 9) == 100101);
    kv_free(store);
}

/* More values of one key than any fixed group; float64 so that another order would show. */
static void three_hundred_values_keep_their_order(const char *type) {
    enum { COUNT = 300 };
    static double data[2][COUNT];
    kv_key keys[2 * COUNT];
    kv_tensor values[2 * COUNT];
    uint64_t random = 5;
    double wanted[2] = {0, 0}, got = 0;
    kv_tensor out = kv_tensor_cpu(&got, KV_F64, 0, NULL);
    for (int i = 0; i < 2 * COUNT; i++) {
        double *place = &data[i % 2][i / 2];
        *place = ldexp(next_uniform(&random), i % 61);
        wanted[i % 2] = i < 2 ? *place : wanted[i % 2] + *place;
        keys[i] = (kv_key)(i % 2);
        values[i] = kv_tensor_cpu(place, KV_F64, 0, NULL);
    }
    kv_store *store = open_store(type);
    CHECK_STATUS(kv_init(store, keys, values, 2), KV_OK);
    CHECK_STATUS(kv_push(store, keys, values, 2 * COUNT, 0, NULL), KV_OK);
    for (kv_key key = 0; key < 2; key++) {
        CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
        CHECK(got == wanted[key]);
    }
    kv_free(store);
}

/* Two values of one key in a layout each, against a row-major copy of them. */
static void check_layouts(kv_store *store, kv_key key, kv_dtype dtype, int64_t *shape,
                          int64_t *first_strides, int64_t *second_strides) {
    enum { ROOM = 64 };
    static uint64_t data[2][ROOM], plain[2][ROOM], wanted[ROOM], got[ROOM];
    void *rows[] = {plain[0], plain[1]};
    int64_t *strides[] = {first_strides, second_strides};
    size_t size = dtype_size(dtype), count = (size_t)(shape[0] * shape[1] * shape[2]);
    uint64_t random = key + 1;
    kv_tensor values[2], out = kv_tensor_cpu(got, dtype, 3, shape);
    for (int i = 0; i < 2; i++) {
        int64_t first = 0;
        for (int axis = 0; axis < 3; axis++) {
            first -= strides[i][axis] < 0 ? strides[i][axis] * (shape[axis] - 1) : 0;
        }
        fill_random(dtype, data[i], ROOM * sizeof(uint64_t) / size, &random);
        values[i] = kv_tensor_cpu(data[i], dtype, 3, shape);
        values[i].strides = strides[i];
        values[i].byte_offset = (uint64_t)first * size;
        gather(dtype, plain[i], (char *)data[i] + (size_t)first * size, 3, shape, strides[i]);
    }
    for (size_t i = 0; i < count; i++) {
        save_bits(dtype, (char *)wanted + i * size, sum_elements(dtype, rows, 2, i));
    }
    kv_key keys[] = {key, key};
    CHECK_STATUS(kv_init(store, keys, values, 1), KV_OK);
    CHECK_STATUS(kv_push(store, keys, values, 2, 0, NULL), KV_OK);
    CHECK_STATUS(kv_pull(store, keys, &out, 1, 0, NULL), KV_OK);
    CHECK(same_elements(dtype, got, wanted, count));
    CHECK_STATUS(kv_push(store, keys, &values[1], 1, 0, NULL), KV_OK);
    CHECK_STATUS(kv_pull(store, keys, &out, 1, 0, NULL), KV_OK);
    CHECK(memcmp(got, plain[1], count * size) == 0);
}

static void values_may_have_any_strides(const char *type) {
    static int64_t shape[] = {2, 3, 5};
    static int64_t layouts[][3] = {{15, 5, 1}, {1, 2, 6},   {-15, -5, -1}, {0, 0, 0}, {0, 5, 1},
                                   {7, 0, 3},  {-1, 17, 3}, {31, 10, 2},   {5, 10, 1}};
    enum { LAYOUTS = 9 };
    kv_store *store = open_store(type);
    kv_key key = 0;
    for (int d = 0; d < DTYPE_COUNT; d++) {
        for (int i = 0; i < LAYOUTS; i++) {
            for (int j = 0; j < LAYOUTS; j++) {
                check_layouts(store, key++, DTYPES[d], shape, layouts[i], layouts[j]);
            }
        }
    }
    kv_free(store);
}

/* A base need only be aligned to its element: every multiple of the size works, nothing else. */
static void any_aligned_base_works_and_no_other(const char *type) {
    enum { COUNT = 129 };
    static uint64_t data[COUNT + 16], got[COUNT];
    kv_store *store = open_store(type);
    int64_t shape[] = {COUNT};
    uint64_t random = 3;
    for (kv_key key = 0; key < DTYPE_COUNT; key++) {
        kv_dtype dtype = DTYPES[key];
        size_t size = dtype_size(dtype);
        kv_tensor value = kv_tensor_cpu(data, dtype, 1, shape);
        kv_tensor out = kv_tensor_cpu(got, dtype, 1, shape);
        fill_random(dtype, data, sizeof data / size, &random);
        CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
        for (uint64_t offset = 0; offset < 64; offset++) {
            kv_status wanted = offset % size == 0 ? KV_OK : KV_ERR_INVALID_ARGUMENT;
            char *begin = (char *)data + offset;
            value.data = data;
            value.byte_offset = offset;
            CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL), wanted);
            value.data = begin;
            value.byte_offset = 0;
            CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL), wanted);
            CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
            begin -= offset % size; /* a refused push has left the one before */
            CHECK(memcmp(got, begin, COUNT * size) == 0);
        }
    }
    kv_free(store);
}

static void a_refused_push_changes_nothing(const char *type) {
    kv_store *store = open_store(type);
    int64_t number = 9, shape[] = {1};
    float other = 9;
    kv_key keys[] = {1, 2};
    kv_tensor values[] = {number_tensor(&number), number_tensor(&number)};
    init_number(store, 1, 10);
    init_number(store, 2, 20);
    keys[1] = 3;
    CHECK_STATUS(kv_push(store, keys, values, 2, 0, NULL), KV_ERR_KEY_NOT_FOUND);
    CHECK(error_says("key 3"));
    keys[1] = (kv_key)1 << 63 | 5;
    CHECK_STATUS(kv_push(store, keys, values, 2, 0, NULL), KV_ERR_KEY_NOT_FOUND);
    keys[1] = 2;
    values[1] = kv_tensor_cpu(&number, KV_I64, 1, shape);
    CHECK_STATUS(kv_push(store, keys, values, 2, 0, NULL), KV_ERR_SHAPE_MISMATCH);
    CHECK(error_says("key 2"));
    values[1] = kv_tensor_cpu(&other, KV_F32, 0, NULL);
    CHECK_STATUS(kv_push(store, keys, values, 2, 0, NULL), KV_ERR_DTYPE_MISMATCH);
    CHECK(error_says("key 2"));
    values[1] = number_tensor(NULL);
    CHECK_STATUS(kv_push(store, keys, values, 2, 0, NULL), KV_ERR_INVALID_ARGUMENT);
    values[1] = number_tensor(&number);
    values[1].device.type = 10; /* ROCm */
    CHECK_STATUS(kv_push(store, keys, values, 2, 0, NULL), KV_ERR_UNSUPPORTED);
    kv_ticket untouched = UNTOUCHED;
    CHECK_STATUS(kv_push(store, keys, values, 2, 0, &untouched), KV_ERR_UNSUPPORTED);
    CHECK(untouched == UNTOUCHED);
    CHECK(pull_number(store, 1) == 10);
    CHECK(pull_number(store, 2) == 20);
    CHECK_STATUS(kv_push(store, NULL, NULL, 0, 0, NULL), KV_OK);
    kv_free(store);
}

/* Shapes must be equal, not only the number of elements. */
static void shapes_must_be_equal(const char *type) {
    kv_store *store = open_store(type);
    float data[6] = {0};
    int64_t shape[] = {2, 3}, wrong[][3] = {{3, 2, 1}, {6, 1, 1}, {2, 3, 1}, {2, 2, 1}, {2, 4, 1}};
    int32_t ndims[] = {2, 1, 3, 2, 2};
    kv_key key = 4;
    kv_tensor value = kv_tensor_cpu(data, KV_F32, 2, shape);
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    for (int i = 0; i < 5; i++) {
        value = kv_tensor_cpu(data, KV_F32, ndims[i], wrong[i]);
        CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL), KV_ERR_SHAPE_MISMATCH);
        CHECK(error_says("float32[2,3]"));
    }
    kv_free(store);
}

/* Only floats become other floats; everything else that differs is refused. */
static void other_dtypes_than_floats_are_refused(const char *type) {
    kv_store *store = open_store(type);
    int64_t shape[] = {2};
    uint64_t data[2] = {0};
    for (kv_key key = 0; key < DTYPE_COUNT; key++) {
        kv_tensor value = kv_tensor_cpu(data, DTYPES[key], 1, shape);
        CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
        for (int other = 0; other < DTYPE_COUNT; other++) {
            int fits = DTYPES[other] == DTYPES[key] ||
                       (dtype_is_float(DTYPES[other]) && dtype_is_float(DTYPES[key]));
            value.dtype = DTYPES[other];
            CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL),
                         fits ? KV_OK : KV_ERR_DTYPE_MISMATCH);
        }
    }
    kv_free(store);
}

/* The library reads a pushed buffer, and keeps and changes nothing of it. */
static void pushed_buffers_stay_the_callers(const char *type) {
    kv_store *store = open_store(type);
    int64_t numbers[] = {4, 5};
    kv_key keys[] = {1, 1};
    kv_tensor values[] = {number_tensor(&numbers[0]), number_tensor(&numbers[1])};
    init_number(store, 1, 0);
    CHECK_STATUS(kv_push(store, keys, values, 1, 0, NULL), KV_OK);
    numbers[0] = 42;
    CHECK(pull_number(store, 1) == 4);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    CHECK_STATUS(kv_push(store, keys, values, 2, 0, NULL), KV_OK);
    CHECK(pull_number(store, 1) == 51);
    CHECK_STATUS(kv_push(store, keys, values, 1, 0, NULL), KV_OK);
    CHECK(pull_number(store, 1) == 93);
    CHECK(numbers[0] == 42 && numbers[1] == 5);
    kv_free(store);
}

/* The same tensor may be a value many times over: inputs may overlap. */
static void one_buffer_may_be_many_values(const char *type) {
    kv_store *store = open_store(type);
    int64_t numbers[] = {1, 2, 3}, shape[] = {2}, got[2];
    kv_key keys[] = {1, 1, 1, 1};
    kv_tensor values[] = {
        kv_tensor_cpu(numbers, KV_I64, 1, shape), kv_tensor_cpu(numbers, KV_I64, 1, shape),
        kv_tensor_cpu(numbers + 1, KV_I64, 1, shape), kv_tensor_cpu(numbers, KV_I64, 1, shape)};
    kv_tensor out = kv_tensor_cpu(got, KV_I64, 1, shape);
    CHECK_STATUS(kv_init(store, keys, values, 1), KV_OK);
    CHECK_STATUS(kv_push(store, keys, values, 4, 0, NULL), KV_OK);
    CHECK_STATUS(kv_pull(store, keys, &out, 1, 0, NULL), KV_OK);
    CHECK(got[0] == 5 && got[1] == 9);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(10);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        a_push_assigns(STORE_TYPES[i]);
        equal_keys_are_summed_wherever_they_stand(STORE_TYPES[i]);
        three_hundred_values_keep_their_order(STORE_TYPES[i]);
        values_may_have_any_strides(STORE_TYPES[i]);
        any_aligned_base_works_and_no_other(STORE_TYPES[i]);
        a_refused_push_changes_nothing(STORE_TYPES[i]);
        shapes_must_be_equal(STORE_TYPES[i]);
        other_dtypes_than_floats_are_refused(STORE_TYPES[i]);
        pushed_buffers_stay_the_callers(STORE_TYPES[i]);
        one_buffer_may_be_many_values(STORE_TYPES[i]);
    }
    return check_passed("api_push");
}
