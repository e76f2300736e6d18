/* kv_push_rows, kv_pull_rows: which rows, in which order, and what is refused. */
#include "support.h"

#include <string.h>

enum { ROWS = 5, LENGTH = 3 };

/* Row r of the table is {10 r, 10 r + 1, 10 r + 2}. */
static void init_table(kv_store *store, kv_key key) {
    float table[ROWS * LENGTH];
    int64_t shape[] = {ROWS, LENGTH};
    for (int i = 0; i < ROWS * LENGTH; i++) {
        table[i] = (float)(i / LENGTH * 10 + i % LENGTH);
    }
    kv_tensor value = kv_tensor_cpu(table, KV_F32, 2, shape);
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
}

static void check_table(kv_store *store, kv_key key, const float *expected) {
    float table[ROWS * LENGTH];
    int64_t shape[] = {ROWS, LENGTH};
    kv_tensor out = kv_tensor_cpu(table, KV_F32, 2, shape);
    CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
    CHECK(memcmp(table, expected, sizeof table) == 0);
}

/* Rows of one key, with ids of one dimension. */
typedef struct rows {
    kv_key key;
    int64_t id_shape[1];
    int64_t shape[2];
    kv_tensor ids;
    kv_tensor tensor;
} rows;

static void set_rows(rows *of, kv_key key, int64_t *ids, float *data, int64_t count) {
    of->key = key;
    of->id_shape[0] = count;
    of->shape[0] = count;
    of->shape[1] = LENGTH;
    of->ids = kv_tensor_cpu(ids, KV_I64, 1, of->id_shape);
    of->tensor = kv_tensor_cpu(data, KV_F32, 2, of->shape);
}

static kv_status push_rows(kv_store *store, kv_key key, int64_t *ids, float *data, int64_t count) {
    rows of;
    set_rows(&of, key, ids, data, count);
    border_of_library();
    return kv_push_rows(store, &of.key, &of.ids, &of.tensor, 1, 0, NULL);
}

static kv_status pull_rows(kv_store *store, kv_key key, int64_t *ids, float *data, int64_t count) {
    rows of;
    set_rows(&of, key, ids, data, count);
    border_of_library();
    return kv_pull_rows(store, &of.key, &of.ids, &of.tensor, 1, 0, NULL);
}

static void pushed_rows_are_replaced_and_no_others(const char *type) {
    kv_store *store = open_store(type);
    int64_t ids[] = {4, 1};
    float data[] = {-1, -2, -3, 7, 8, 9};
    float expected[] = {0, 1, 2, 7, 8, 9, 20, 21, 22, 30, 31, 32, -1, -2, -3};
    init_table(store, 3);
    CHECK_STATUS(push_rows(store, 3, ids, data, 2), KV_OK);
    check_table(store, 3, expected);
    CHECK_STATUS(push_rows(store, 3, NULL, NULL, 0), KV_OK);
    check_table(store, 3, expected);
    kv_free(store);
}

/* In float32, 1e8 + 1 - 1e8 is 0 from left to right, and 1 in another order. */
static void what_is_pushed_to_a_row_is_added_up_in_call_order(const char *type) {
    kv_store *store = open_store(type);
    int64_t first_ids[] = {2, 0, 2};
    int64_t second_ids[] = {3, 2};
    float first[] = {1e8f, 1e8f, 1, 5, 5, 5, 1, 1, 1e8f};
    float second[] = {6, 6, 6, -1e8f, -1e8f, -1e8f};
    float expected[] = {5, 5, 5, 10, 11, 12, 0, 0, 0, 6, 6, 6, 40, 41, 42};
    rows parts[2];
    init_table(store, 3);
    set_rows(&parts[0], 3, first_ids, first, 3);
    set_rows(&parts[1], 3, second_ids, second, 2);
    kv_key keys[] = {3, 3};
    kv_tensor ids[] = {parts[0].ids, parts[1].ids};
    kv_tensor values[] = {parts[0].tensor, parts[1].tensor};
    CHECK_STATUS(kv_push_rows(store, keys, ids, values, 2, 0, NULL), KV_OK);
    check_table(store, 3, expected);
    kv_free(store);
}

static void pulled_rows_come_in_the_order_of_their_ids(const char *type) {
    kv_store *store = open_store(type);
    int64_t ids[] = {3, 0, 3, 1};
    float out[4 * LENGTH];
    float expected[] = {30, 31, 32, 0, 1, 2, 30, 31, 32, 10, 11, 12};
    init_table(store, 3);
    CHECK_STATUS(pull_rows(store, 3, ids, out, 4), KV_OK);
    CHECK(memcmp(out, expected, sizeof out) == 0);
    CHECK_STATUS(pull_rows(store, 3, NULL, NULL, 0), KV_OK);
    /* Ids of two dimensions, every second number of an array, and a transposed out of float64. */
    int64_t spread[] = {3, -1, 0, -1, 3, -1, 1, -1};
    int64_t id_shape[] = {2, 2}, id_strides[] = {4, 2};
    double turned[4 * LENGTH];
    int64_t out_shape[] = {2, 2, LENGTH}, out_strides[] = {2, 1, 4};
    kv_key key = 3;
    kv_tensor id_tensor = kv_tensor_cpu(spread, KV_I64, 2, id_shape);
    kv_tensor tensor = kv_tensor_cpu(turned, KV_F64, 3, out_shape);
    id_tensor.strides = id_strides;
    tensor.strides = out_strides;
    CHECK_STATUS(kv_pull_rows(store, &key, &id_tensor, &tensor, 1, 0, NULL), KV_OK);
    for (int i = 0; i < 4 * LENGTH; i++) {
        CHECK(turned[i / LENGTH + 4 * (i % LENGTH)] == (double)expected[i]);
    }
    kv_free(store);
}

/* The ids are copied: they may change while the operation waits. */
static void a_ticket_lends_the_rows_and_copies_the_ids(const char *type) {
    kv_store *store = open_store(type);
    int64_t ids[] = {1, 2};
    float data[] = {1, 1, 1, 2, 2, 2};
    float out[2 * LENGTH];
    rows of;
    kv_ticket push = 0, pull = 0;
    init_table(store, 3);
    set_rows(&of, 3, ids, data, 2);
    CHECK_STATUS(kv_push_rows(store, &of.key, &of.ids, &of.tensor, 1, 0, &push), KV_OK);
    ids[0] = 4;
    rows outs;
    set_rows(&outs, 3, ids, out, 2);
    CHECK_STATUS(kv_pull_rows(store, &outs.key, &outs.ids, &outs.tensor, 1, 0, &pull), KV_OK);
    ids[1] = 100;
    CHECK_STATUS(kv_wait(store, pull, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_wait(store, push, WAIT_MS), KV_OK);
    float expected[] = {40, 41, 42, 2, 2, 2};
    CHECK(memcmp(out, expected, sizeof out) == 0);
    CHECK_STATUS(kv_cancel(store, push), KV_OK);
    kv_free(store);
}

static kv_status add_dense(void *context, kv_key key, const kv_tensor *input,
                           const kv_tensor *stored) {
    (void)context;
    (void)key;
    border_of_library();
    CHECK(input->ndim == 2 && input->shape[0] == ROWS && input->shape[1] == LENGTH);
    for (int i = 0; i < ROWS * LENGTH; i++) {
        ((float *)stored->data)[i] += ((const float *)input->data)[i];
    }
    border_of_library();
    return KV_OK;
}

static void an_updater_gets_the_dense_sum(const char *type) {
    kv_store *store = open_store(type);
    int64_t ids[] = {4, 4};
    float data[] = {1, 2, 3, 10, 20, 30};
    float expected[] = {0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32, 51, 63, 75};
    init_table(store, 3);
    CHECK_STATUS(kv_set_updater(store, add_dense, NULL, NULL), KV_OK);
    CHECK_STATUS(push_rows(store, 3, ids, data, 2), KV_OK);
    check_table(store, 3, expected);
    kv_free(store);
}

/* Weight decay of 1/2 at a rate of 1: dense-equivalent, every row shrinks; lazy, the pushed ones. */
static void an_optimizer_changes_all_rows_unless_it_is_lazy(const char *type) {
    kv_store *store = open_store(type);
    int64_t ids[] = {1};
    float data[] = {1, 1, 1};
    float lazy[] = {0, 1, 2, 4, 4.5, 5, 20, 21, 22, 30, 31, 32, 40, 41, 42};
    float all[] = {0, 0.5, 1, 1, 1.25, 1.5, 10, 10.5, 11, 15, 15.5, 16, 20, 20.5, 21};
    init_table(store, 3);
    const char *params = "learning_rate=1,wd=0.5,lazy_update=true";
    CHECK_STATUS(kv_set_optimizer(store, "sgd", params), KV_OK);
    CHECK_STATUS(push_rows(store, 3, ids, data, 1), KV_OK);
    check_table(store, 3, lazy);
    CHECK_STATUS(kv_set_hyperparameter(store, "lazy_update", 0), KV_OK);
    CHECK_STATUS(push_rows(store, 3, ids, data, 1), KV_OK);
    check_table(store, 3, all);
    kv_free(store);
}

#define CHECK_REFUSED(call, status, text) \
    do {                                  \
        CHECK_STATUS(call, status);       \
        CHECK(error_says(text));          \
    } while (0)

static void what_is_wrong_is_named_and_nothing_happens(const char *type) {
    kv_store *store = open_store(type);
    float table[] = {0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32, 40, 41, 42};
    int64_t ids[] = {0, ROWS}, negative[] = {-1, 0}, good[] = {0, 1};
    float data[2 * LENGTH] = {9, 9, 9, 9, 9, 9};
    rows of;
    init_table(store, 3);
    init_number(store, 4, 5);
    CHECK_REFUSED(push_rows(store, 3, ids, data, 2), KV_ERR_INVALID_ARGUMENT,
                  "push_rows: key 3: row id 5 is out of range: stored is float32[5,3], with rows 0 to 4");
    CHECK_REFUSED(push_rows(store, 3, negative, data, 2), KV_ERR_INVALID_ARGUMENT, "row id -1");
    CHECK_REFUSED(pull_rows(store, 3, ids, data, 2), KV_ERR_INVALID_ARGUMENT,
                  "pull_rows: key 3: row id 5");
    CHECK_REFUSED(push_rows(store, 7, good, data, 2), KV_ERR_KEY_NOT_FOUND, "push_rows: key 7");
    CHECK_REFUSED(push_rows(store, 4, good, data, 2), KV_ERR_SHAPE_MISMATCH, "has no rows");
    CHECK_REFUSED(push_rows(store, 3, NULL, data, 2), KV_ERR_INVALID_ARGUMENT,
                  "the tensor of row ids");
    CHECK_REFUSED(push_rows(store, 3, good, NULL, 2), KV_ERR_INVALID_ARGUMENT, "key 3: the value");
    set_rows(&of, 3, good, data, 2);
    of.ids.dtype = KV_F64;
    CHECK_REFUSED(kv_push_rows(store, &of.key, &of.ids, &of.tensor, 1, 0, NULL),
                  KV_ERR_DTYPE_MISMATCH, "the row ids are float64[2]; they must be int64");
    set_rows(&of, 3, good, data, 2);
    of.shape[0] = 1;
    CHECK_REFUSED(kv_push_rows(store, &of.key, &of.ids, &of.tensor, 1, 0, NULL),
                  KV_ERR_SHAPE_MISMATCH, "it must be float32[2,3]");
    set_rows(&of, 3, good, data, 2);
    of.tensor.dtype = KV_I32;
    CHECK_REFUSED(kv_push_rows(store, &of.key, &of.ids, &of.tensor, 1, 0, NULL),
                  KV_ERR_DTYPE_MISMATCH, "value is int32[2,3], stored is float32[5,3]");
    CHECK_STATUS(kv_push_rows(store, NULL, &of.ids, &of.tensor, 1, 0, NULL),
                 KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_push_rows(store, &of.key, NULL, &of.tensor, 1, 0, NULL),
                 KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_pull_rows(store, &of.key, &of.ids, NULL, 1, 0, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_push_rows(store, NULL, NULL, NULL, 0, 0, NULL), KV_OK);
    /* Two outs that overlap in part, and one list of which the second part is wrong. */
    rows parts[2];
    float out[3 * LENGTH] = {0};
    set_rows(&parts[0], 3, good, out, 2);
    set_rows(&parts[1], 3, good, out + LENGTH, 2);
    kv_key keys[] = {3, 3};
    kv_tensor id_tensors[] = {parts[0].ids, parts[1].ids};
    kv_tensor tensors[] = {parts[0].tensor, parts[1].tensor};
    CHECK_REFUSED(kv_pull_rows(store, keys, id_tensors, tensors, 2, 0, NULL), KV_ERR_OVERLAP,
                  "pull_rows: an out of key 3 overlaps");
    set_rows(&parts[1], 3, ids, data, 2);
    id_tensors[1] = parts[1].ids;
    CHECK_STATUS(kv_push_rows(store, keys, id_tensors, tensors, 2, 0, NULL),
                 KV_ERR_INVALID_ARGUMENT);
    check_table(store, 3, table);
    kv_free(store);
}

int main(void) {
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        const char *type = STORE_TYPES[i];
        pushed_rows_are_replaced_and_no_others(type);
        what_is_pushed_to_a_row_is_added_up_in_call_order(type);
        pulled_rows_come_in_the_order_of_their_ids(type);
        a_ticket_lends_the_rows_and_copies_the_ids(type);
        an_updater_gets_the_dense_sum(type);
        an_optimizer_changes_all_rows_unless_it_is_lazy(type);
        what_is_wrong_is_named_and_nothing_happens(type);
    }
    return 0;
}
