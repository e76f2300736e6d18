/* kv_init: copies first values, all or none. */
#include "numbers.h"
#include "support.h"

static void the_value_is_copied(const char *type) {
    kv_store *store = open_store(type);
    int64_t number = 5;
    kv_tensor value = number_tensor(&number);
    kv_key key = 0;
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    number = 6;
    CHECK(pull_number(store, 0) == 5);
    kv_free(store);
}

/* Every dtype, with all kinds of bits; pulled back bit for bit, quiet and signalling NaNs too. */
static void every_dtype_is_kept_bit_for_bit(const char *type) {
    enum { COUNT = 1000 };
    static uint64_t data[COUNT], got[COUNT];
    kv_store *store = open_store(type);
    uint64_t random = 1;
    int64_t shape[] = {10, 100};
    for (kv_key key = 0; key < DTYPE_COUNT; key++) {
        kv_dtype dtype = DTYPES[key];
        size_t bytes = COUNT * dtype_size(dtype);
        fill_random(dtype, data, COUNT, &random);
        memset(got, 0, bytes);
        kv_tensor value = kv_tensor_cpu(data, dtype, 2, shape);
        kv_tensor out = kv_tensor_cpu(got, dtype, 2, shape);
        CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
        CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
        CHECK(memcmp(got, data, bytes) == 0);
    }
    kv_free(store);
}

static void strided_values_are_stored_row_major(const char *type) {
    float data[24], wanted[12], got[12];
    int64_t shape[] = {3, 4};
    int64_t layouts[][2] = {{1, 3}, {-4, 1}, {4, -1}, {-8, 2}, {0, 5}, {5, 0}, {0, 0}, {7, 3}};
    for (int i = 0; i < 24; i++) {
        data[i] = (float)i;
    }
    kv_store *store = open_store(type);
    for (kv_key key = 0; key < sizeof layouts / sizeof layouts[0]; key++) {
        int64_t *strides = layouts[key];
        size_t first = (strides[0] < 0 ? (size_t)(-2 * strides[0]) : 0) +
                       (strides[1] < 0 ? (size_t)(-3 * strides[1]) : 0);
        kv_tensor value = kv_tensor_cpu(data, KV_F32, 2, shape);
        value.strides = strides;
        value.byte_offset = first * sizeof data[0];
        kv_tensor out = kv_tensor_cpu(got, KV_F32, 2, shape);
        gather(KV_F32, wanted, data + first, 2, shape, strides);
        CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
        CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
        CHECK(memcmp(got, wanted, sizeof wanted) == 0);
    }
    kv_free(store);
}

static void any_rank_and_no_elements_at_all(const char *type) {
    kv_store *store = open_store(type);
    int64_t none[] = {3, 0, 2}, deep[] = {1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    float pair[] = {1, 2}, got[] = {0, 0};
    kv_tensor values[] = {
        kv_tensor_cpu(&pair[1], KV_F32, 0, NULL),
        kv_tensor_cpu(NULL, KV_F32, 3, none),
        kv_tensor_cpu(pair, KV_F32, 12, deep),
    };
    kv_tensor outs[] = {
        kv_tensor_cpu(&got[0], KV_F32, 0, NULL),
        kv_tensor_cpu(NULL, KV_F32, 3, none),
    };
    kv_key keys[] = {0, 1, 2};
    CHECK_STATUS(kv_init(store, keys, values, 3), KV_OK);
    CHECK_STATUS(kv_pull(store, keys, outs, 2, 0, NULL), KV_OK);
    CHECK(got[0] == 2);
    outs[0] = kv_tensor_cpu(got, KV_F32, 12, deep);
    CHECK_STATUS(kv_pull(store, &keys[2], outs, 1, 0, NULL), KV_OK);
    CHECK(got[0] == 1 && got[1] == 2);
    kv_free(store);
}

static size_t count_keys(kv_store *store) {
    size_t count = 99;
    CHECK_STATUS(kv_keys(store, NULL, 0, &count), KV_OK);
    return count;
}

static void a_second_init_is_refused(const char *type) {
    kv_store *store = open_store(type);
    int64_t numbers[] = {1, 2, 3};
    kv_tensor values[] = {number_tensor(&numbers[0]), number_tensor(&numbers[1]),
                          number_tensor(&numbers[2])};
    init_number(store, 7, 70);
    kv_key again[] = {5, 7, 6};
    CHECK_STATUS(kv_init(store, again, values, 3), KV_ERR_KEY_EXISTS);
    CHECK(error_says("key 7"));
    CHECK(count_keys(store) == 1);
    CHECK(pull_number(store, 7) == 70);
    kv_key twice[] = {5, 6, 5};
    CHECK_STATUS(kv_init(store, twice, values, 3), KV_ERR_KEY_EXISTS);
    CHECK(error_says("key 5"));
    CHECK(count_keys(store) == 1);
    kv_free(store);
}

static void a_name_must_be_interned_in_this_store(const char *type) {
    kv_store *store = open_store(type), *other = open_store(type);
    int64_t number = 1;
    kv_tensor values[] = {number_tensor(&number), number_tensor(&number)};
    kv_key keys[] = {1, 0};
    CHECK_STATUS(kv_intern(other, "weight", &keys[1]), KV_OK);
    CHECK_STATUS(kv_init(store, keys, values, 2), KV_ERR_KEY_NOT_FOUND);
    CHECK(count_keys(store) == 0);
    CHECK_STATUS(kv_intern(store, "weight", &keys[1]), KV_OK);
    CHECK_STATUS(kv_init(store, keys, values, 2), KV_OK);
    CHECK(count_keys(store) == 2);
    kv_free(store);
    kv_free(other);
}

/* One bad tensor at the end of the list, and nothing is stored. */
static void a_bad_pair_refuses_the_whole_call(const char *type) {
    kv_store *store = open_store(type);
    int64_t number = 1, negative[] = {-1};
    kv_key keys[] = {1, 2};
    kv_tensor values[] = {number_tensor(&number), number_tensor(&number)};
    values[1].dtype = 0;
    CHECK_STATUS(kv_init(store, keys, values, 2), KV_ERR_INVALID_ARGUMENT);
    CHECK(error_says("key 2"));
    values[1] = kv_tensor_cpu(&number, KV_I64, 1, negative);
    CHECK_STATUS(kv_init(store, keys, values, 2), KV_ERR_INVALID_ARGUMENT);
    values[1] = number_tensor(&number);
    values[1].device.type = 10; /* ROCm */
    CHECK_STATUS(kv_init(store, keys, values, 2), KV_ERR_UNSUPPORTED);
    values[1] = number_tensor(NULL);
    CHECK_STATUS(kv_init(store, keys, values, 2), KV_ERR_INVALID_ARGUMENT);
    CHECK(count_keys(store) == 0);
    kv_free(store);
}

static void no_pairs_are_nothing(const char *type) {
    kv_store *store = open_store(type);
    CHECK_STATUS(kv_init(store, NULL, NULL, 0), KV_OK);
    CHECK(count_keys(store) == 0);
    kv_free(store);
}

/* The first value goes past the updater. */
static void init_does_not_call_the_updater(const char *type) {
    kv_store *store = open_store(type);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    init_number(store, 1, 10);
    CHECK(pull_number(store, 1) == 10);
    CHECK_STATUS(push_number(store, 1, 5), KV_OK);
    CHECK(pull_number(store, 1) == 15);
    kv_free(store);
}

static void many_keys_in_one_call(const char *type) {
    enum { COUNT = 5000 };
    static int64_t numbers[COUNT];
    static kv_key keys[COUNT];
    static kv_tensor values[COUNT];
    kv_store *store = open_store(type);
    for (int i = 0; i < COUNT; i++) {
        numbers[i] = i * 3;
        keys[i] = (kv_key)(i * 7919 % COUNT);
        values[i] = number_tensor(&numbers[i]);
    }
    CHECK_STATUS(kv_init(store, keys, values, COUNT), KV_OK);
    CHECK(count_keys(store) == COUNT);
    for (int i = 0; i < COUNT; i += 97) {
        CHECK(pull_number(store, keys[i]) == i * 3);
    }
    kv_free(store);
}

int main(void) {
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        the_value_is_copied(STORE_TYPES[i]);
        every_dtype_is_kept_bit_for_bit(STORE_TYPES[i]);
        strided_values_are_stored_row_major(STORE_TYPES[i]);
        any_rank_and_no_elements_at_all(STORE_TYPES[i]);
        a_second_init_is_refused(STORE_TYPES[i]);
        a_name_must_be_interned_in_this_store(STORE_TYPES[i]);
        a_bad_pair_refuses_the_whole_call(STORE_TYPES[i]);
        no_pairs_are_nothing(STORE_TYPES[i]);
        init_does_not_call_the_updater(STORE_TYPES[i]);
        many_keys_in_one_call(STORE_TYPES[i]);
    }
    return check_passed("api_init");
}
