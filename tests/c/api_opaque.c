/*
 * Dtypes whose values are stored, copied, saved and given out, and never added: bool, complex, floats of
 * 8 bits. What would add two of them is refused in the call, and changes nothing.
 */
#include "check.h"
#include "files.h"
#include "numbers.h"
#include "support.h"

static const kv_dtype OPAQUE[] = {KV_BOOL,   KV_F8_E4M3FN,   KV_F8_E4M3FNUZ, KV_F8_E5M2,
                                  KV_F8_E5M2FNUZ, KV_F8_E8M0FNU, KV_C64,    KV_C128};
static const char *const NAMES[] = {
    "bool",       "float8_e4m3fn",   "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "complex64",  "complex128"};
enum { OPAQUE_COUNT = 8, MOST_ELEMENTS = 5000, MOST_BYTES = MOST_ELEMENTS * 16 };

/* Elements of an opaque dtype: those of bool are 0 and 1, all others have any bits. */
static void fill_opaque(kv_dtype dtype, void *data, size_t count, uint64_t *random) {
    unsigned char *bytes = data;
    for (size_t i = 0; i < count * dtype_size(dtype); i++) {
        bytes[i] = (unsigned char)next_random(random);
        if (dtype == KV_BOOL) {
            bytes[i] &= 1;
        }
    }
}

/* Two values of an opaque dtype, and room for what is pulled. */
typedef struct values {
    kv_dtype dtype;
    size_t bytes;
    int64_t shape[1];
    double first[MOST_BYTES / 8], second[MOST_BYTES / 8], got[MOST_BYTES / 8];
    kv_tensor before, after, out;
} values;

static values at;

static void make_values(kv_dtype dtype, size_t count, uint64_t *random) {
    at.dtype = dtype;
    at.bytes = count * dtype_size(dtype);
    at.shape[0] = (int64_t)count;
    fill_opaque(dtype, at.first, count, random);
    fill_opaque(dtype, at.second, count, random);
    at.before = kv_tensor_cpu(at.first, dtype, 1, at.shape);
    at.after = kv_tensor_cpu(at.second, dtype, 1, at.shape);
    at.out = kv_tensor_cpu(at.got, dtype, 1, at.shape);
}

static void check_stored(kv_store *store, kv_key key, const void *wanted) {
    memset(at.got, 0x5a, sizeof at.got);
    CHECK_STATUS(kv_pull(store, &key, &at.out, 1, 0, NULL), KV_OK);
    CHECK(memcmp(at.got, wanted, at.bytes) == 0);
}

static void one_value_replaces(const char *type) {
    static const size_t counts[] = {0, 1, 3, 64, 1000, MOST_ELEMENTS};
    kv_store *store = open_store(type);
    uint64_t random = 30;
    kv_key key = 0;
    for (int d = 0; d < OPAQUE_COUNT; d++) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++, key++) {
            kv_ticket ticket = 0;
            make_values(OPAQUE[d], counts[i], &random);
            CHECK_STATUS(kv_init(store, &key, &at.before, 1), KV_OK);
            check_stored(store, key, at.first);
            CHECK_STATUS(kv_push(store, &key, &at.after, 1, 0, NULL), KV_OK);
            check_stored(store, key, at.second);
            CHECK_STATUS(kv_push(store, &key, &at.before, 1, 0, &ticket), KV_OK);
            CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
            check_stored(store, key, at.first);
            memset(at.got, 0x5a, sizeof at.got);
            CHECK_STATUS(kv_pushpull(store, &key, &at.after, 1, &key, &at.out, 1, 0, NULL), KV_OK);
            CHECK(memcmp(at.got, at.second, at.bytes) == 0);
        }
    }
    kv_free(store);
}

/* One refusal: the message names key, dtype and what to do, and nothing of the call is applied. */
static void check_refused(kv_store *store, kv_key key, const char *name, kv_status got) {
    char label[40];
    CHECK_STATUS(got, KV_ERR_UNSUPPORTED);
    snprintf(label, sizeof label, "key %d", (int)key);
    CHECK(error_says(label) && error_says(name) && error_says("not added"));
    CHECK(error_says("push one"));
    check_stored(store, key, at.first);
}

static void two_values_are_refused(const char *type) {
    kv_store *store = open_store(type);
    uint64_t random = 31;
    int64_t number = 7, seen = 0;
    kv_key plain = 1000;
    kv_tensor plain_value = kv_tensor_cpu(&number, KV_I64, 0, NULL);
    kv_tensor plain_out = kv_tensor_cpu(&seen, KV_I64, 0, NULL);
    CHECK_STATUS(kv_init(store, &plain, &plain_value, 1), KV_OK);
    for (kv_key key = 0; key < OPAQUE_COUNT; key++) {
        const char *name = NAMES[key];
        kv_ticket ticket = 0;
        make_values(OPAQUE[key], 70, &random);
        number = 8;
        kv_key keys[] = {key, plain, key};
        kv_tensor list[] = {at.after, plain_value, at.after};
        CHECK_STATUS(kv_init(store, &key, &at.before, 1), KV_OK);
        check_refused(store, key, name, kv_push(store, keys, list, 3, 0, NULL));
        check_refused(store, key, name, kv_push(store, keys, list, 3, 0, &ticket));
        CHECK(ticket == 0);
        check_refused(store, key, name,
                      kv_pushpull(store, keys, list, 3, &key, &at.out, 1, 0, NULL));
        CHECK_STATUS(kv_pull(store, &plain, &plain_out, 1, 0, NULL), KV_OK);
        CHECK(seen == 7);
    }
    kv_free(store);
}

/* The names of dtypes that are not the key's are in the message, and no pair converts. */
static void other_dtypes_are_refused(kv_store *store) {
    uint64_t random = 32;
    for (kv_key key = 0; key < OPAQUE_COUNT; key++) {
        make_values(OPAQUE[key], 9, &random);
        CHECK_STATUS(kv_init(store, &key, &at.before, 1), KV_OK);
        for (int other = 0; other < OPAQUE_COUNT + DTYPE_COUNT; other++) {
            kv_dtype dtype =
                other < OPAQUE_COUNT ? OPAQUE[other] : DTYPES[other - OPAQUE_COUNT];
            if (dtype != OPAQUE[key]) {
                kv_tensor value = at.after, out = at.out;
                value.dtype = out.dtype = dtype;
                CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL), KV_ERR_DTYPE_MISMATCH);
                CHECK(error_says(NAMES[key]));
                CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_ERR_DTYPE_MISMATCH);
            }
        }
        check_stored(store, key, at.first);
    }
    kv_free(store);
}

/* Every second element, from the end to the front. */
static void strided_values_and_outs(kv_store *store) {
    int64_t strides[] = {-2};
    uint64_t random = 33;
    for (kv_key key = 0; key < OPAQUE_COUNT; key++) {
        size_t size = dtype_size(OPAQUE[key]), count = 1001;
        make_values(OPAQUE[key], 2 * count, &random);
        at.shape[0] = (int64_t)count;
        kv_tensor value = at.before, out = at.out;
        value.data = (char *)at.first + 2 * (count - 1) * size;
        out.data = (char *)at.got + 2 * (count - 1) * size;
        value.strides = out.strides = strides;
        CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
        memset(at.got, 0x5a, sizeof at.got);
        CHECK_STATUS(kv_pushpull(store, &key, &value, 1, &key, &out, 1, 0, NULL), KV_OK);
        for (size_t i = 0; i < count; i++) {
            const char *got = (char *)at.got + 2 * i * size;
            CHECK(memcmp(got, (char *)at.first + 2 * i * size, size) == 0);
            CHECK(i + 1 == count || got[size] == 0x5a);
        }
    }
    kv_free(store);
}

/* complex64 is aligned as its parts are, complex128 to 8 bytes. */
static void parts_of_complex_numbers_align_them(kv_store *store) {
    static const kv_dtype dtypes[] = {KV_C64, KV_C128};
    uint64_t random = 34;
    for (kv_key key = 0; key < 2; key++) {
        size_t part = dtype_size(dtypes[key]) / 2;
        make_values(dtypes[key], 50, &random);
        at.before.data = (char *)at.first + part;
        at.out.data = (char *)at.got + part;
        CHECK_STATUS(kv_init(store, &key, &at.before, 1), KV_OK);
        CHECK_STATUS(kv_push(store, &key, &at.before, 1, 0, NULL), KV_OK);
        CHECK_STATUS(kv_pull(store, &key, &at.out, 1, 0, NULL), KV_OK);
        CHECK(memcmp(at.out.data, at.before.data, at.bytes) == 0);
        at.before.data = (char *)at.first + part / 2;
        CHECK_STATUS(kv_push(store, &key, &at.before, 1, 0, NULL), KV_ERR_INVALID_ARGUMENT);
        CHECK(error_says("misaligned"));
    }
    kv_free(store);
}

/* As for integers: refused when the rule is set or the key initialised, but for keys with "none". */
static void optimizers_do_not_change_them(kv_store *store) {
    uint64_t random = 35;
    for (kv_key key = 0; key < OPAQUE_COUNT; key++) {
        make_values(OPAQUE[key], 3, &random);
        CHECK_STATUS(kv_init(store, &key, &at.before, 1), KV_OK);
        CHECK_STATUS(kv_set_optimizer(store, "sgd", NULL), KV_ERR_DTYPE_MISMATCH);
        CHECK(error_says(NAMES[key]));
        CHECK_STATUS(kv_set_optimizer_for(store, &key, 1, "none", NULL), KV_OK);
        CHECK_STATUS(kv_set_optimizer(store, "sgd", NULL), KV_OK);
        CHECK_STATUS(kv_push(store, &key, &at.after, 1, 0, NULL), KV_OK);
        check_stored(store, key, at.second);
        kv_key other = key + 100;
        CHECK_STATUS(kv_init(store, &other, &at.before, 1), KV_ERR_DTYPE_MISMATCH);
        CHECK_STATUS(kv_set_updater(store, NULL, NULL, NULL), KV_OK);
    }
    kv_free(store);
}

/* As integers are: a store with a codec takes them as they are. */
static void codecs_leave_them_alone(kv_store *store) {
    uint64_t random = 36;
    CHECK_STATUS(kv_set_compression(store, "2bit", "threshold=0.5"), KV_OK);
    for (kv_key key = 0; key < OPAQUE_COUNT; key++) {
        make_values(OPAQUE[key], 700, &random);
        CHECK_STATUS(kv_init(store, &key, &at.before, 1), KV_OK);
        CHECK_STATUS(kv_push(store, &key, &at.after, 1, 0, NULL), KV_OK);
        check_stored(store, key, at.second);
    }
    kv_free(store);
}

static kv_status note_input(void *context, kv_key key, const kv_tensor *input,
                            const kv_tensor *stored) {
    size_t bytes = (size_t)input->shape[0] * dtype_size(input->dtype);
    *(int *)context += 1;
    CHECK(input->dtype == OPAQUE[key] && stored->dtype == OPAQUE[key]);
    CHECK(memcmp(input->data, at.second, bytes) == 0);
    memset(stored->data, 1, bytes);
    return KV_OK;
}

/* An updater gets the only value; its result is what it writes. */
static void an_updater_gets_the_value(kv_store *store) {
    int calls = 0;
    uint64_t random = 37;
    CHECK_STATUS(kv_set_updater(store, note_input, &calls, NULL), KV_OK);
    for (kv_key key = 0; key < OPAQUE_COUNT; key++) {
        kv_key keys[] = {key, key};
        make_values(OPAQUE[key], 40, &random);
        kv_tensor list[] = {at.after, at.after};
        CHECK_STATUS(kv_init(store, &key, &at.before, 1), KV_OK);
        CHECK_STATUS(kv_push(store, keys, list, 2, 0, NULL), KV_ERR_UNSUPPORTED);
        CHECK_STATUS(kv_push(store, &key, &at.after, 1, 0, NULL), KV_OK);
        memset(at.first, 1, at.bytes);
        check_stored(store, key, at.first);
    }
    CHECK(calls == OPAQUE_COUNT);
    kv_free(store);
}

static void rows_are_replaced(kv_store *store) {
    enum { ROWS = 6, LENGTH = 4 };
    uint64_t random = 38;
    for (kv_key key = 0; key < OPAQUE_COUNT; key++) {
        size_t row = LENGTH * dtype_size(OPAQUE[key]);
        int64_t ids[] = {4, 1, 4}, id_shape[] = {2};
        int64_t shape[] = {ROWS, LENGTH}, pushed_shape[] = {2, LENGTH};
        make_values(OPAQUE[key], (size_t)ROWS * LENGTH, &random);
        kv_tensor id = kv_tensor_cpu(ids, KV_I64, 1, id_shape);
        kv_tensor rows = kv_tensor_cpu(at.second, OPAQUE[key], 2, pushed_shape);
        kv_tensor got = kv_tensor_cpu(at.got, OPAQUE[key], 2, pushed_shape);
        at.before = kv_tensor_cpu(at.first, OPAQUE[key], 2, shape);
        at.out = kv_tensor_cpu(at.got, OPAQUE[key], 2, shape);
        CHECK_STATUS(kv_init(store, &key, &at.before, 1), KV_OK);
        CHECK_STATUS(kv_push_rows(store, &key, &id, &rows, 1, 0, NULL), KV_OK);
        CHECK_STATUS(kv_pull_rows(store, &key, &id, &got, 1, 0, NULL), KV_OK);
        CHECK(memcmp(at.got, at.second, 2 * row) == 0);
        memcpy((char *)at.first + 4 * row, at.second, row);
        memcpy((char *)at.first + row, (char *)at.second + row, row);
        check_stored(store, key, at.first);
        /* Rows that would be added: one that is twice in a value, or two values. */
        id_shape[0] = pushed_shape[0] = 3;
        CHECK_STATUS(kv_push_rows(store, &key, &id, &rows, 1, 0, NULL), KV_ERR_UNSUPPORTED);
        CHECK(error_says("row 4") && error_says(NAMES[key]));
        id_shape[0] = pushed_shape[0] = 2;
        kv_key keys[] = {key, key};
        kv_tensor both_ids[] = {id, id}, both[] = {rows, rows};
        CHECK_STATUS(kv_push_rows(store, keys, both_ids, both, 2, 0, NULL), KV_ERR_UNSUPPORTED);
        check_stored(store, key, at.first);
    }
    kv_free(store);
}

/* Also beside keys of other dtypes, whose sizes leave them at odd places in the file. */
static void checkpoints_keep_them(kv_store *store) {
    static unsigned char before[OPAQUE_COUNT][16 * 33];
    const char *path = new_folder("model.safetensors");
    uint64_t random = 39;
    kv_key_digest digest, loaded_digest;
    for (kv_key key = 0; key < OPAQUE_COUNT; key++) {
        make_values(OPAQUE[key], 33, &random);
        CHECK_STATUS(kv_init(store, &key, &at.before, 1), KV_OK);
        memcpy(before[key], at.first, at.bytes);
    }
    CHECK_STATUS(kv_save(store, path), KV_OK);
    kv_store *loaded = open_store("local");
    CHECK_STATUS(kv_load(loaded, path), KV_OK);
    for (kv_key key = 0; key < OPAQUE_COUNT; key++) {
        kv_dtype dtype;
        int32_t ndim = 0;
        int64_t shape[1] = {0};
        make_values(OPAQUE[key], 33, &random);
        CHECK_STATUS(kv_key_info(loaded, key, &dtype, &ndim, shape, 1), KV_OK);
        CHECK(dtype == OPAQUE[key] && ndim == 1 && shape[0] == 33);
        check_stored(loaded, key, before[key]);
        CHECK_STATUS(kv_digest(store, &key, &digest, 1), KV_OK);
        CHECK_STATUS(kv_digest(loaded, &key, &loaded_digest, 1), KV_OK);
        CHECK(digest.value == loaded_digest.value && digest.value != 0);
        CHECK_STATUS(kv_push(loaded, &key, &at.after, 1, 0, NULL), KV_OK);
    }
    /* Into keys that are there: equal dtypes are needed. */
    CHECK_STATUS(kv_load(loaded, path), KV_OK);
    check_stored(loaded, OPAQUE_COUNT - 1, before[OPAQUE_COUNT - 1]);
    kv_free(loaded);
    kv_free(store);
    CHECK(remove(path) == 0);
    remove_folder();
}

int main(void) {
    alarm_after_minutes(5);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        one_value_replaces(STORE_TYPES[i]);
        two_values_are_refused(STORE_TYPES[i]);
    }
    other_dtypes_are_refused(open_store("local"));
    strided_values_and_outs(open_store("local"));
    parts_of_complex_numbers_align_them(open_store("local"));
    one_value_replaces("local");
    optimizers_do_not_change_them(open_store("local"));
    codecs_leave_them_alone(open_store("local"));
    an_updater_gets_the_value(open_store("local"));
    rows_are_replaced(open_store("local"));
    rows_are_replaced(open_with("sum_order", "tree"));
    checkpoints_keep_them(open_store("local"));
    return check_passed("api_opaque");
}
