/* kv_broadcast: an init and a pull in one call. */
#include "support.h"

static void the_outs_see_the_first_values(const char *type) {
    kv_store *store = open_store(type);
    int64_t numbers[] = {1, 2}, got[4] = {0};
    kv_key keys[] = {5, 3}, out_keys[] = {3, 9, 5, 5};
    kv_tensor values[] = {number_tensor(&numbers[0]), number_tensor(&numbers[1])}, outs[4];
    for (int i = 0; i < 4; i++) {
        outs[i] = number_tensor(&got[i]);
    }
    init_number(store, 9, 90);
    CHECK_STATUS(kv_broadcast(store, keys, values, 2, out_keys, outs, 4, 0, NULL), KV_OK);
    CHECK(got[0] == 2 && got[1] == 90 && got[2] == 1 && got[3] == 1);
    kv_free(store);
}

static void either_list_may_be_empty(const char *type) {
    kv_store *store = open_store(type);
    int64_t number = 8, got = 0;
    kv_key key = 1;
    kv_tensor value = number_tensor(&number), out = number_tensor(&got);
    CHECK_STATUS(kv_broadcast(store, &key, &value, 1, NULL, NULL, 0, 0, NULL), KV_OK);
    CHECK_STATUS(kv_broadcast(store, NULL, NULL, 0, &key, &out, 1, 0, NULL), KV_OK);
    CHECK(got == 8);
    CHECK_STATUS(kv_broadcast(store, NULL, NULL, 0, NULL, NULL, 0, 0, NULL), KV_OK);
    kv_free(store);
}

static size_t count_keys(kv_store *store) {
    size_t count = 99;
    CHECK_STATUS(kv_keys(store, NULL, 0, &count), KV_OK);
    return count;
}

/* A bad pair in either list: no key is stored, no out is written. */
static void all_pairs_are_checked_before_any_is_applied(const char *type) {
    kv_store *store = open_store(type);
    int64_t numbers[] = {1, 2}, got = (int64_t)UNTOUCHED, shape[] = {1};
    kv_key keys[] = {1, 2}, twice[] = {1, 1}, unknown = 7;
    kv_tensor values[] = {number_tensor(&numbers[0]), number_tensor(&numbers[1])};
    kv_tensor out = number_tensor(&got), wrong = kv_tensor_cpu(&got, KV_I64, 1, shape);
    kv_ticket untouched = UNTOUCHED;
    CHECK_STATUS(kv_broadcast(store, twice, values, 2, keys, &out, 1, 0, NULL),
                 KV_ERR_KEY_EXISTS);
    CHECK_STATUS(kv_broadcast(store, keys, values, 2, &unknown, &out, 1, 0, NULL),
                 KV_ERR_KEY_NOT_FOUND);
    CHECK(error_says("key 7"));
    CHECK_STATUS(kv_broadcast(store, keys, values, 2, keys, &wrong, 1, 0, &untouched),
                 KV_ERR_SHAPE_MISMATCH);
    wrong = kv_tensor_cpu(&got, KV_F64, 0, NULL);
    CHECK_STATUS(kv_broadcast(store, keys, values, 2, keys, &wrong, 1, 0, &untouched),
                 KV_ERR_DTYPE_MISMATCH);
    wrong = number_tensor(&got);
    wrong.device.type = 10; /* ROCm */
    CHECK_STATUS(kv_broadcast(store, keys, values, 2, keys, &wrong, 1, 0, NULL),
                 KV_ERR_UNSUPPORTED);
    wrong = number_tensor(NULL);
    CHECK_STATUS(kv_broadcast(store, keys, values, 2, keys, &wrong, 1, 0, NULL),
                 KV_ERR_INVALID_ARGUMENT);
    CHECK(count_keys(store) == 0);
    init_number(store, 2, 20);
    CHECK_STATUS(kv_broadcast(store, keys, values, 2, keys, &out, 1, 0, NULL),
                 KV_ERR_KEY_EXISTS);
    CHECK(error_says("key 2"));
    CHECK(count_keys(store) == 1);
    CHECK(pull_number(store, 2) == 20);
    CHECK(got == (int64_t)UNTOUCHED && untouched == UNTOUCHED);
    kv_free(store);
}

static void an_out_may_be_the_value_of_its_key(const char *type) {
    kv_store *store = open_store(type);
    int64_t numbers[] = {1, 2, 3, 4}, shape[] = {2};
    kv_key keys[] = {1, 2};
    kv_tensor values[] = {kv_tensor_cpu(numbers, KV_I64, 1, shape),
                          kv_tensor_cpu(numbers + 2, KV_I64, 1, shape)};
    CHECK_STATUS(kv_broadcast(store, keys, values, 2, keys, values, 2, 0, NULL), KV_OK);
    CHECK(numbers[0] == 1 && numbers[1] == 2 && numbers[2] == 3 && numbers[3] == 4);
    kv_free(store);
}

static void outs_that_overlap_in_part_are_refused(const char *type) {
    kv_store *store = open_store(type);
    int64_t numbers[] = {1, 2}, got[] = {7, 8, 9}, shape[] = {2}, still[] = {0};
    kv_key key = 1, keys[] = {1, 1};
    kv_tensor value = kv_tensor_cpu(numbers, KV_I64, 1, shape);
    kv_tensor outs[] = {kv_tensor_cpu(got, KV_I64, 1, shape),
                        kv_tensor_cpu(got + 1, KV_I64, 1, shape)};
    CHECK_STATUS(kv_broadcast(store, &key, &value, 1, keys, outs, 2, 0, NULL), KV_ERR_OVERLAP);
    outs[0].strides = still;
    CHECK_STATUS(kv_broadcast(store, &key, &value, 1, keys, outs, 1, 0, NULL), KV_ERR_OVERLAP);
    CHECK(got[0] == 7 && got[1] == 8 && got[2] == 9);
    CHECK(count_keys(store) == 0);
    kv_free(store);
}

/* With a ticket the values are copied before the call returns; only the outs stay lent. */
static void with_a_ticket_only_the_outs_stay_lent(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    int64_t first = 1, number = 5, got = 0;
    kv_key key = 2;
    kv_ticket ticket = 0;
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    send_number(store, 1, &first, 0);
    gate_await(&at, 1);
    kv_tensor value = number_tensor(&number), out = number_tensor(&got);
    CHECK_STATUS(kv_broadcast(store, &key, &value, 1, &key, &out, 1, 0, &ticket), KV_OK);
    number = 6;
    gate_open(&at);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    CHECK(got == 5);
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(5);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        the_outs_see_the_first_values(STORE_TYPES[i]);
        either_list_may_be_empty(STORE_TYPES[i]);
        all_pairs_are_checked_before_any_is_applied(STORE_TYPES[i]);
        an_out_may_be_the_value_of_its_key(STORE_TYPES[i]);
        outs_that_overlap_in_part_are_refused(STORE_TYPES[i]);
        with_a_ticket_only_the_outs_stay_lent(STORE_TYPES[i]);
    }
    return check_passed("api_broadcast");
}
