/* kv_pull: outs of every layout, many outs, shared outs, refusals. Numbers: api_convert.c. */
#include "numbers.h"
#include "support.h"

static void many_outs_of_one_key_are_all_filled(const char *type) {
    kv_store *store = open_store(type);
    int64_t got[5] = {0};
    kv_key keys[] = {3, 4, 3, 3, 4};
    kv_tensor outs[5];
    for (int i = 0; i < 5; i++) {
        outs[i] = number_tensor(&got[i]);
    }
    init_number(store, 3, 6);
    init_number(store, 4, 7);
    CHECK_STATUS(kv_pull(store, keys, outs, 5, 0, NULL), KV_OK);
    CHECK(got[0] == 6 && got[1] == 7 && got[2] == 6 && got[3] == 6 && got[4] == 7);
    kv_free(store);
}

/* Processing order: integers ascending, then names in order of their init. */
static void the_last_key_wins_a_shared_out(const char *type) {
    enum { COUNT = 70001 };
    static int64_t data[5][COUNT], got[COUNT];
    kv_store *store = open_store(type);
    int64_t shape[] = {COUNT};
    kv_tensor out = kv_tensor_cpu(got, KV_I64, 1, shape);
    kv_key late = 0, early = 0;
    CHECK_STATUS(kv_intern(store, "late", &late), KV_OK);
    CHECK_STATUS(kv_intern(store, "early", &early), KV_OK);
    kv_key keys[] = {5, 9, 7, early, late};
    for (int i = 0; i < 5; i++) {
        kv_tensor value = kv_tensor_cpu(data[i], KV_I64, 1, shape);
        for (int j = 0; j < COUNT; j++) {
            data[i][j] = (i + 1) * 1000000 + j;
        }
        CHECK_STATUS(kv_init(store, &keys[i], &value, 1), KV_OK);
    }
    static const struct {
        int order[3];
        int winner;
    } cases[] = {{{0, 1, 2}, 1}, {{1, 2, 0}, 1}, {{0, 2, 0}, 2},
                 {{4, 3, 1}, 4}, {{3, 4, 0}, 4}, {{3, 1, 0}, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kv_key chosen[3];
        kv_tensor outs[] = {out, out, out};
        for (int j = 0; j < 3; j++) {
            chosen[j] = keys[cases[i].order[j]];
        }
        memset(got, 0, sizeof got);
        CHECK_STATUS(kv_pull(store, chosen, outs, 3, 0, NULL), KV_OK);
        CHECK(memcmp(got, data[cases[i].winner], sizeof got) == 0);
    }
    kv_free(store);
}

/* Only the elements of the out are written, whatever its strides. */
static void outs_may_have_any_strides_but_zero(const char *type) {
    static int64_t layouts[][3] = {{15, 5, 1}, {1, 2, 6},   {-15, -5, -1}, {32, 9, 2},
                                   {-1, 17, 3}, {60, -20, 4}, {3, 40, 7}};
    enum { ROOM = 128, COUNT = 30 };
    static uint64_t data[COUNT], got[ROOM], back[COUNT];
    int64_t shape[] = {2, 3, 5};
    uint64_t random = 9;
    kv_store *store = open_store(type);
    for (kv_key key = 0; key < DTYPE_COUNT; key++) {
        kv_dtype dtype = DTYPES[key];
        size_t size = dtype_size(dtype);
        fill_random(dtype, data, COUNT, &random);
        kv_tensor value = kv_tensor_cpu(data, dtype, 3, shape);
        CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            int64_t first = 0;
            for (int axis = 0; axis < 3; axis++) {
                first -= layouts[i][axis] < 0 ? layouts[i][axis] * (shape[axis] - 1) : 0;
            }
            kv_tensor out = kv_tensor_cpu(got, dtype, 3, shape);
            out.strides = layouts[i];
            out.byte_offset = (uint64_t)first * size;
            memset(got, 0x5a, sizeof got);
            CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
            gather(dtype, back, (char *)got + (size_t)first * size, 3, shape, layouts[i]);
            CHECK(memcmp(back, data, COUNT * size) == 0);
            size_t written = 0;
            for (size_t at = 0; at < sizeof got / size; at++) {
                uint64_t filler = UNTOUCHED;
                written += memcmp((char *)got + at * size, &filler, size) != 0;
            }
            CHECK(written <= COUNT);
        }
    }
    kv_free(store);
}

static kv_status pull_two(kv_store *store, kv_tensor first, kv_tensor second) {
    kv_key keys[] = {1, 2};
    kv_tensor outs[] = {first, second};
    return kv_pull(store, keys, outs, 2, 0, NULL);
}

/* Exactly the same tensor may serve two keys; anything that shares only a part may not. */
static void outs_that_overlap_in_part_are_refused(const char *type) {
    float data[] = {1, 2, 3, 4}, got[16];
    int64_t shape[] = {2, 2}, swapped[] = {1, 2}, backwards[] = {-2, -1};
    kv_store *store = open_store(type);
    kv_key keys[] = {1, 2};
    kv_tensor value = kv_tensor_cpu(data, KV_F32, 2, shape);
    kv_tensor values[] = {value, value};
    CHECK_STATUS(kv_init(store, keys, values, 2), KV_OK);
    kv_tensor out = kv_tensor_cpu(got + 4, KV_F32, 2, shape);
    CHECK_STATUS(pull_two(store, out, out), KV_OK);
    memset(got, 0x5a, sizeof got);

    kv_tensor other = out;
    for (int shift = -3; shift <= 3; shift++) {
        other.data = got + 4 + shift;
        if (shift != 0) {
            CHECK_STATUS(pull_two(store, out, other), KV_ERR_OVERLAP);
        }
    }
    CHECK(error_says("key "));
    other = out;
    other.strides = swapped;
    CHECK_STATUS(pull_two(store, out, other), KV_ERR_OVERLAP);
    other.strides = backwards;
    other.data = got + 7;
    CHECK_STATUS(pull_two(store, other, out), KV_ERR_OVERLAP);
    other = kv_tensor_cpu(got + 4, KV_BF16, 2, shape);
    CHECK_STATUS(pull_two(store, out, other), KV_ERR_OVERLAP);
    uint32_t filler = (uint32_t)UNTOUCHED;
    for (int i = 0; i < 16; i++) {
        CHECK(memcmp(&got[i], &filler, sizeof filler) == 0);
    }
    other = kv_tensor_cpu(got + 8, KV_F32, 2, shape);
    CHECK_STATUS(pull_two(store, out, other), KV_OK);
    CHECK(memcmp(got + 8, data, sizeof data) == 0);
    kv_free(store);
}

/* The same memory by other means: data and byte_offset, and strides that say what NULL says. */
static void an_out_is_the_same_however_it_is_written(const char *type) {
    float data[] = {1, 2, 3, 4}, got[8] = {0};
    int64_t shape[] = {2, 2}, plain[] = {2, 1};
    kv_store *store = open_store(type);
    kv_key keys[] = {1, 2};
    kv_tensor value = kv_tensor_cpu(data, KV_F32, 2, shape);
    kv_tensor values[] = {value, value};
    CHECK_STATUS(kv_init(store, keys, values, 2), KV_OK);
    kv_tensor out = kv_tensor_cpu(got + 2, KV_F32, 2, shape);
    kv_tensor other = kv_tensor_cpu(got, KV_F32, 2, shape);
    other.byte_offset = 2 * sizeof got[0];
    other.strides = plain;
    CHECK_STATUS(pull_two(store, out, other), KV_OK);
    CHECK(got[1] == 0 && memcmp(got + 2, data, sizeof data) == 0 && got[6] == 0);
    kv_free(store);
}

static void an_out_must_not_overlap_itself(const char *type) {
    float data[4] = {1, 2, 3, 4}, got[8];
    int64_t shape[] = {2, 2}, layouts[][2] = {{0, 1}, {1, 0}, {0, 0}, {1, 1}, {1, -1}};
    kv_store *store = open_store(type);
    kv_key key = 1;
    kv_tensor value = kv_tensor_cpu(data, KV_F32, 2, shape);
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    memset(got, 0x5a, sizeof got);
    for (int i = 0; i < 5; i++) {
        kv_tensor out = kv_tensor_cpu(got + 4, KV_F32, 2, shape);
        out.strides = layouts[i];
        CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_ERR_OVERLAP);
        CHECK(error_says("key 1"));
    }
    uint64_t filler = UNTOUCHED;
    for (int i = 0; i < 8; i += 2) {
        CHECK(memcmp(&got[i], &filler, sizeof filler) == 0);
    }
    kv_free(store);
}

static void a_refused_pull_writes_nothing(const char *type) {
    kv_store *store = open_store(type);
    int64_t got[2] = {(int64_t)UNTOUCHED, (int64_t)UNTOUCHED}, shape[] = {1};
    kv_key keys[] = {1, 2};
    kv_tensor outs[] = {number_tensor(&got[0]), number_tensor(&got[1])};
    init_number(store, 1, 10);
    CHECK_STATUS(kv_pull(store, keys, outs, 2, 0, NULL), KV_ERR_KEY_NOT_FOUND);
    CHECK(error_says("key 2"));
    init_number(store, 2, 20);
    outs[1] = kv_tensor_cpu(&got[1], KV_I64, 1, shape);
    CHECK_STATUS(kv_pull(store, keys, outs, 2, 0, NULL), KV_ERR_SHAPE_MISMATCH);
    CHECK(error_says("int64[1]"));
    outs[1] = kv_tensor_cpu(&got[1], KV_F64, 0, NULL);
    CHECK_STATUS(kv_pull(store, keys, outs, 2, 0, NULL), KV_ERR_DTYPE_MISMATCH);
    outs[1] = number_tensor(NULL);
    CHECK_STATUS(kv_pull(store, keys, outs, 2, 0, NULL), KV_ERR_INVALID_ARGUMENT);
    outs[1] = number_tensor(&got[1]);
    outs[1].byte_offset = 4;
    CHECK_STATUS(kv_pull(store, keys, outs, 2, 0, NULL), KV_ERR_INVALID_ARGUMENT);
    outs[1] = number_tensor(&got[1]);
    outs[1].device.type = 10; /* ROCm */
    kv_ticket untouched = UNTOUCHED;
    CHECK_STATUS(kv_pull(store, keys, outs, 2, 0, NULL), KV_ERR_UNSUPPORTED);
    CHECK_STATUS(kv_pull(store, keys, outs, 2, 0, &untouched), KV_ERR_UNSUPPORTED);
    CHECK(untouched == UNTOUCHED);
    CHECK(got[0] == (int64_t)UNTOUCHED && got[1] == (int64_t)UNTOUCHED);
    CHECK_STATUS(kv_pull(store, NULL, NULL, 0, 0, NULL), KV_OK);
    kv_free(store);
}

static void outs_without_elements_never_overlap(const char *type) {
    kv_store *store = open_store(type);
    int64_t shape[] = {0, 4}, strides[] = {0, 0};
    char nothing = 'n';
    kv_key keys[] = {1, 2, 1};
    kv_tensor empty = kv_tensor_cpu(&nothing, KV_U8, 2, shape);
    kv_tensor values[] = {empty, empty, empty};
    CHECK_STATUS(kv_init(store, keys, values, 2), KV_OK);
    values[1].data = NULL;
    values[2].strides = strides;
    CHECK_STATUS(kv_pull(store, keys, values, 3, 0, NULL), KV_OK);
    CHECK(nothing == 'n');
    kv_free(store);
}

/* Thousands of columns of one matrix, which interleave, are outs of one call. */
static void thousands_of_columns_are_all_filled(const char *type) {
    enum { ROWS = 50 };
    size_t count = (size_t)scaled(20000, 500);
    kv_store *store = open_store(type);
    int64_t shape[] = {ROWS}, stride[] = {(int64_t)count}, wide[] = {ROWS, 2};
    int64_t wide_strides[] = {(int64_t)count, 1};
    float column[ROWS], pair[2 * ROWS] = {0};
    float *matrix = calloc(count * ROWS, sizeof *matrix);
    kv_tensor *outs = calloc(count, sizeof *outs);
    kv_key *keys = calloc(count, sizeof *keys);
    CHECK(matrix != NULL && outs != NULL && keys != NULL);
    for (int row = 0; row < ROWS; row++) {
        column[row] = (float)(row + 1);
    }
    kv_key both[] = {1, 2};
    kv_tensor values[] = {kv_tensor_cpu(column, KV_F32, 1, shape),
                          kv_tensor_cpu(pair, KV_F32, 2, wide)};
    CHECK_STATUS(kv_init(store, both, values, 2), KV_OK);
    for (size_t i = 0; i < count; i++) {
        outs[i] = kv_tensor_cpu(matrix + i, KV_F32, 1, shape);
        outs[i].strides = stride;
        keys[i] = 1;
    }
    CHECK_STATUS(kv_pull(store, keys, outs, count, 0, NULL), KV_OK);
    for (size_t i = 0; i < count * ROWS; i++) {
        CHECK(matrix[i] == (float)(i / count + 1));
    }
    /* One that reaches into its neighbour. */
    outs[count / 3] = kv_tensor_cpu(matrix + count / 3, KV_F32, 2, wide);
    outs[count / 3].strides = wide_strides;
    keys[count / 3] = 2;
    CHECK_STATUS(kv_pull(store, keys, outs, count, 0, NULL), KV_ERR_OVERLAP);
    CHECK(error_says("key 1") && error_says("key 2"));
    free(keys);
    free(outs);
    free(matrix);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(10);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        many_outs_of_one_key_are_all_filled(STORE_TYPES[i]);
        the_last_key_wins_a_shared_out(STORE_TYPES[i]);
        outs_may_have_any_strides_but_zero(STORE_TYPES[i]);
        outs_that_overlap_in_part_are_refused(STORE_TYPES[i]);
        an_out_is_the_same_however_it_is_written(STORE_TYPES[i]);
        an_out_must_not_overlap_itself(STORE_TYPES[i]);
        a_refused_pull_writes_nothing(STORE_TYPES[i]);
        outs_without_elements_never_overlap(STORE_TYPES[i]);
        thousands_of_columns_are_all_filled(STORE_TYPES[i]);
    }
    return check_passed("api_pull");
}
