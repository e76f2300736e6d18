/* kv_pushpull: a push and a pull in one operation, in place too. */
#include "numbers.h"
#include "support.h"

static void the_outs_see_the_push(const char *type) {
    kv_store *store = open_store(type);
    int64_t numbers[] = {1, 2, 40}, got[4] = {0};
    kv_key keys[] = {5, 5, 3}, out_keys[] = {3, 9, 5, 5};
    kv_tensor values[3], outs[4];
    for (int i = 0; i < 3; i++) {
        values[i] = number_tensor(&numbers[i]);
    }
    for (int i = 0; i < 4; i++) {
        outs[i] = number_tensor(&got[i]);
    }
    init_number(store, 3, 0);
    init_number(store, 5, 0);
    init_number(store, 9, 90);
    CHECK_STATUS(kv_pushpull(store, keys, values, 3, out_keys, outs, 4, 0, NULL), KV_OK);
    CHECK(got[0] == 40 && got[1] == 90 && got[2] == 3 && got[3] == 3);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    CHECK_STATUS(kv_pushpull(store, keys, values, 3, out_keys, outs, 4, 0, NULL), KV_OK);
    CHECK(got[0] == 80 && got[1] == 90 && got[2] == 6 && got[3] == 6);
    kv_free(store);
}

/* Either list may be empty: then it is a push, a pull, or nothing. */
static void either_list_may_be_empty(const char *type) {
    kv_store *store = open_store(type);
    int64_t number = 8, got = 0;
    kv_key key = 1;
    kv_tensor value = number_tensor(&number), out = number_tensor(&got);
    init_number(store, 1, 0);
    CHECK_STATUS(kv_pushpull(store, &key, &value, 1, NULL, NULL, 0, 0, NULL), KV_OK);
    CHECK_STATUS(kv_pushpull(store, NULL, NULL, 0, &key, &out, 1, 0, NULL), KV_OK);
    CHECK(got == 8);
    CHECK_STATUS(kv_pushpull(store, NULL, NULL, 0, NULL, NULL, 0, 0, NULL), KV_OK);
    kv_free(store);
}

/* Every dtype and 1 to 4 values; the out is each of the values in turn. */
static void an_out_may_be_a_value_of_its_key(const char *type) {
    enum { COUNT = 5003, MOST = 4 };
    static uint64_t data[MOST][COUNT], wanted[COUNT], stored[COUNT];
    void *rows[MOST];
    int64_t shape[] = {COUNT};
    uint64_t random = 13;
    kv_store *store = open_store(type);
    for (kv_key key = 0; key < DTYPE_COUNT; key++) {
        kv_dtype dtype = DTYPES[key];
        size_t size = dtype_size(dtype);
        kv_key keys[] = {key, key, key, key};
        kv_tensor values[MOST], check = kv_tensor_cpu(stored, dtype, 1, shape);
        for (int i = 0; i < MOST; i++) {
            rows[i] = data[i];
            values[i] = kv_tensor_cpu(data[i], dtype, 1, shape);
        }
        CHECK_STATUS(kv_init(store, keys, &check, 1), KV_OK);
        for (size_t count = 1; count <= MOST; count++) {
            for (size_t place = 0; place < count; place++) {
                fill_random(dtype, data, MOST * sizeof data[0] / size, &random);
                for (size_t i = 0; i < COUNT; i++) {
                    save_bits(dtype, (char *)wanted + i * size,
                              sum_elements(dtype, rows, count, i));
                }
                CHECK_STATUS(
                    kv_pushpull(store, keys, values, count, keys, &values[place], 1, 0, NULL),
                    KV_OK);
                CHECK(same_elements(dtype, data[place], wanted, COUNT));
                CHECK_STATUS(kv_pull(store, keys, &check, 1, 0, NULL), KV_OK);
                CHECK(memcmp(stored, data[place], COUNT * size) == 0);
            }
        }
    }
    kv_free(store);
}

/* In place with strides, and through an updater. */
static void in_place_works_with_strides_and_updaters(const char *type) {
    int64_t data[] = {1, -1, 2, -1, 3}, shape[] = {3}, strides[] = {2};
    kv_store *store = open_store(type);
    kv_key key = 1;
    kv_tensor value = kv_tensor_cpu(data, KV_I64, 1, shape);
    value.strides = strides;
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    kv_key twice[] = {1, 1};
    kv_tensor values[] = {value, value};
    CHECK_STATUS(kv_pushpull(store, twice, values, 2, &key, &value, 1, 0, NULL), KV_OK);
    CHECK(data[0] == 2 && data[1] == -1 && data[2] == 4 && data[3] == -1 && data[4] == 6);

    int64_t number = 5;
    kv_key other = 2;
    init_number(store, 2, 10);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    value = number_tensor(&number);
    CHECK_STATUS(kv_pushpull(store, &other, &value, 1, &other, &value, 1, 0, NULL), KV_OK);
    CHECK(number == 15);
    kv_free(store);
}

typedef struct refusal {
    kv_store *store;
    float data[12], before[12];
    int64_t shape[1];
    kv_key keys[2];
    kv_tensor values[2];
} refusal;

/* The call is refused and nothing has changed: not the buffers, not the stored values. */
static void check_refused(refusal *at, kv_key out_key, kv_tensor out) {
    float got[4] = {0};
    kv_tensor check = kv_tensor_cpu(got, KV_F32, 1, at->shape);
    CHECK_STATUS(
        kv_pushpull(at->store, at->keys, at->values, 2, &out_key, &out, 1, 0, NULL),
        KV_ERR_OVERLAP);
    CHECK(memcmp(at->data, at->before, sizeof at->data) == 0);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(kv_pull(at->store, &at->keys[i], &check, 1, 0, NULL), KV_OK);
        CHECK(memcmp(got, at->data + 4 * i, sizeof got) == 0);
    }
}

static void all_other_overlaps_are_refused(const char *type) {
    refusal at = {.shape = {4}, .keys = {1, 2}};
    int64_t backwards[] = {-1};
    at.store = open_store(type);
    for (int i = 0; i < 12; i++) {
        at.data[i] = (float)i;
    }
    memcpy(at.before, at.data, sizeof at.data);
    at.values[0] = kv_tensor_cpu(at.data, KV_F32, 1, at.shape);
    at.values[1] = kv_tensor_cpu(at.data + 4, KV_F32, 1, at.shape);
    CHECK_STATUS(kv_init(at.store, at.keys, at.values, 2), KV_OK);

    check_refused(&at, 2, at.values[0]); /* a value, but of another key */
    check_refused(&at, 1, kv_tensor_cpu(at.data + 1, KV_F32, 1, at.shape));
    check_refused(&at, 2, kv_tensor_cpu(at.data + 7, KV_F32, 1, at.shape));
    check_refused(&at, 1, kv_tensor_cpu(at.data, KV_F16, 1, at.shape));
    kv_tensor out = kv_tensor_cpu(at.data + 3, KV_F32, 1, at.shape);
    out.strides = backwards;
    check_refused(&at, 1, out);
    kv_free(at.store);
}

/* A bad pair in either list refuses both. */
static void all_pairs_are_checked_before_any_is_applied(const char *type) {
    kv_store *store = open_store(type);
    int64_t number = 5, got = (int64_t)UNTOUCHED, shape[] = {1};
    kv_key key = 1, unknown = 9;
    kv_tensor value = number_tensor(&number), out = number_tensor(&got);
    kv_tensor wrong = kv_tensor_cpu(&got, KV_I64, 1, shape);
    kv_ticket untouched = UNTOUCHED;
    init_number(store, 1, 10);
    CHECK_STATUS(kv_pushpull(store, &key, &value, 1, &unknown, &out, 1, 0, NULL),
                 KV_ERR_KEY_NOT_FOUND);
    CHECK_STATUS(kv_pushpull(store, &key, &value, 1, &key, &wrong, 1, 0, NULL),
                 KV_ERR_SHAPE_MISMATCH);
    CHECK_STATUS(kv_pushpull(store, &unknown, &value, 1, &key, &out, 1, 0, NULL),
                 KV_ERR_KEY_NOT_FOUND);
    wrong = kv_tensor_cpu(&got, KV_F32, 0, NULL);
    CHECK_STATUS(kv_pushpull(store, &key, &value, 1, &key, &wrong, 1, 0, &untouched),
                 KV_ERR_DTYPE_MISMATCH);
    CHECK_STATUS(kv_pushpull(store, &key, &wrong, 1, &key, &out, 1, 0, &untouched),
                 KV_ERR_DTYPE_MISMATCH);
    wrong = number_tensor(&got);
    wrong.device.type = 10; /* ROCm */
    CHECK_STATUS(kv_pushpull(store, &key, &value, 1, &key, &wrong, 1, 0, NULL),
                 KV_ERR_UNSUPPORTED);
    wrong = number_tensor(NULL);
    CHECK_STATUS(kv_pushpull(store, &key, &value, 1, &key, &wrong, 1, 0, NULL),
                 KV_ERR_INVALID_ARGUMENT);
    CHECK(untouched == UNTOUCHED);
    CHECK(got == (int64_t)UNTOUCHED);
    CHECK(pull_number(store, 1) == 10);
    kv_free(store);
}

/* Outs of another float type, for keys pushed and not pushed. */
static void outs_are_converted(const char *type) {
    kv_store *store = open_store(type);
    float first = 1.0f + 0x1p-11f, second = 3;
    double wide = 0;
    uint16_t narrow = 0;
    kv_key keys[] = {1, 2};
    kv_tensor values[] = {kv_tensor_cpu(&first, KV_F32, 0, NULL),
                          kv_tensor_cpu(&second, KV_F32, 0, NULL)};
    kv_tensor outs[] = {kv_tensor_cpu(&narrow, KV_F16, 0, NULL),
                        kv_tensor_cpu(&wide, KV_F64, 0, NULL)};
    CHECK_STATUS(kv_init(store, keys, values, 2), KV_OK);
    CHECK_STATUS(kv_pushpull(store, keys, values, 1, keys, outs, 2, 0, NULL), KV_OK);
    CHECK(decode_float(KV_F16, narrow) == 1);
    CHECK(wide == 3);
    kv_free(store);
}

static kv_status fail_on_key_two(void *context, kv_key key, const kv_tensor *input,
                                 const kv_tensor *stored) {
    return key == 2 ? KV_ERR_INVALID_ARGUMENT : add_number(context, key, input, stored);
}

static void a_failing_updater_leaves_later_outs_alone(const char *type) {
    kv_store *store = open_store(type);
    int64_t numbers[] = {1, 2, 3}, got[3];
    kv_key keys[] = {3, 2, 1};
    kv_tensor values[3], outs[3];
    memset(got, 0x5a, sizeof got);
    for (int i = 0; i < 3; i++) {
        values[i] = number_tensor(&numbers[i]);
        outs[i] = number_tensor(&got[i]);
        init_number(store, keys[i], 10);
    }
    CHECK_STATUS(kv_set_updater(store, fail_on_key_two, NULL, NULL), KV_OK);
    CHECK_STATUS(kv_pushpull(store, keys, values, 3, keys, outs, 3, 0, NULL), KV_ERR_CALLBACK);
    CHECK(error_says("key 2"));
    CHECK(pull_number(store, 1) == 13);
    CHECK(pull_number(store, 2) == 10);
    CHECK(pull_number(store, 3) == 10);
    CHECK(got[0] == (int64_t)UNTOUCHED && got[1] == (int64_t)UNTOUCHED);
    CHECK(got[2] == 13);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(10);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        the_outs_see_the_push(STORE_TYPES[i]);
        either_list_may_be_empty(STORE_TYPES[i]);
        an_out_may_be_a_value_of_its_key(STORE_TYPES[i]);
        in_place_works_with_strides_and_updaters(STORE_TYPES[i]);
        all_other_overlaps_are_refused(STORE_TYPES[i]);
        all_pairs_are_checked_before_any_is_applied(STORE_TYPES[i]);
        outs_are_converted(STORE_TYPES[i]);
        a_failing_updater_leaves_later_outs_alone(STORE_TYPES[i]);
    }
    return check_passed("api_pushpull");
}
