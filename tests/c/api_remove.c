/* kv_remove: keys go after what is pending on them, and may come back in another shape. */
#include "support.h"

static void a_removed_key_may_come_back_in_another_shape(const char *type) {
    kv_store *store = open_store(type);
    float data[] = {1, 2, 3}, got[] = {0, 0, 0};
    int64_t shape[] = {3};
    kv_key key = 4;
    kv_tensor value = kv_tensor_cpu(data, KV_F32, 1, shape);
    kv_tensor out = kv_tensor_cpu(got, KV_F32, 1, shape);
    init_number(store, 4, 40);
    init_number(store, 5, 50);
    CHECK_STATUS(kv_remove(store, &key, 1), KV_OK);
    CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL), KV_ERR_KEY_NOT_FOUND);
    CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_ERR_KEY_NOT_FOUND);
    CHECK_STATUS(kv_remove(store, &key, 1), KV_ERR_KEY_NOT_FOUND);
    CHECK(error_says("key 4"));
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
    CHECK(memcmp(got, data, sizeof data) == 0);
    CHECK(pull_number(store, 5) == 50);
    kv_free(store);
}

/* A missing key, or one that stands twice in the list: nothing is removed. */
static void all_keys_are_checked_before_any_goes(const char *type) {
    kv_store *store = open_store(type);
    init_number(store, 1, 10);
    init_number(store, 2, 20);
    kv_key missing[] = {1, 3, 2}, twice[] = {1, 2, 1}, both[] = {2, 1};
    CHECK_STATUS(kv_remove(store, missing, 3), KV_ERR_KEY_NOT_FOUND);
    CHECK(error_says("key 3"));
    CHECK_STATUS(kv_remove(store, twice, 3), KV_ERR_KEY_NOT_FOUND);
    CHECK(error_says("key 1"));
    CHECK(pull_number(store, 1) == 10);
    CHECK(pull_number(store, 2) == 20);
    CHECK_STATUS(kv_remove(store, NULL, 0), KV_OK);
    CHECK_STATUS(kv_remove(store, both, 2), KV_OK);
    CHECK_STATUS(kv_remove(store, both, 1), KV_ERR_KEY_NOT_FOUND);
    kv_free(store);
}

static void *open_after_a_while(void *at) {
    sleep_ms(50);
    gate_open(at);
    return NULL;
}

/* This thread's own operations on the key finish first: the push, then the pull. */
static void operations_of_this_thread_finish_first(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    pthread_t opener;
    int64_t number = 5, got = 0;
    kv_key key = 1;
    init_number(store, 1, 10);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    kv_ticket push = send_number(store, 1, &number, 0);
    kv_ticket pull = ask_number(store, 1, &got);
    gate_await(&at, 1);
    CHECK(pthread_create(&opener, NULL, open_after_a_while, &at) == 0);
    CHECK_STATUS(kv_remove(store, &key, 1), KV_OK);
    CHECK(pthread_join(opener, NULL) == 0);
    CHECK_STATUS(kv_wait(store, push, 0), KV_OK);
    CHECK_STATUS(kv_wait(store, pull, 0), KV_OK);
    CHECK(got == 15);
    kv_free(store);
}

/* With an updater that does not return in time nothing is removed, and the key lives on. */
static void a_key_at_work_is_not_removed_in_time(void) {
    kv_store *store = open_with("timeout_ms", "30");
    gate at = GATE_CLOSED;
    int64_t number = 5;
    kv_key keys[] = {1, 2};
    init_number(store, 1, 10);
    init_number(store, 2, 20);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    gate_await(&at, 1);
    CHECK_STATUS(kv_remove(store, keys, 2), KV_ERR_TIMEOUT);
    CHECK(error_says("key 1"));
    gate_open(&at);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    CHECK(pull_number(store, 1) == 15);
    CHECK(pull_number(store, 2) == 20);
    CHECK_STATUS(kv_remove(store, keys, 2), KV_OK);
    kv_free(store);
}

typedef struct sender {
    kv_store *store;
    int64_t numbers[2];
    kv_ticket tickets[2];
} sender;

static void *send_two(void *context) {
    sender *at = context;
    at->tickets[0] = send_number(at->store, 2, &at->numbers[0], 0);
    at->tickets[1] = send_number(at->store, 2, &at->numbers[1], 0);
    return NULL;
}

/* Operations with a ticket finish first, whoever queued them; then the key is gone. */
static void queued_operations_of_others_finish_first(const char *type) {
    gate at = GATE_CLOSED;
    sender other = {.store = open_store(type), .numbers = {100, 200}};
    kv_store *store = other.store;
    pthread_t thread, opener;
    kv_key key = 2;
    init_number(store, 2, 20);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    CHECK(pthread_create(&thread, NULL, send_two, &other) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    gate_await(&at, 1);
    CHECK(pthread_create(&opener, NULL, open_after_a_while, &at) == 0);
    CHECK_STATUS(kv_remove(store, &key, 1), KV_OK);
    CHECK(pthread_join(opener, NULL) == 0);
    CHECK_STATUS(kv_wait(store, other.tickets[0], 0), KV_OK);
    CHECK_STATUS(kv_wait(store, other.tickets[1], 0), KV_OK);
    CHECK(at.arrived == 2);
    CHECK_STATUS(push_number(store, 2, 1), KV_ERR_KEY_NOT_FOUND);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(5);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        a_removed_key_may_come_back_in_another_shape(STORE_TYPES[i]);
        all_keys_are_checked_before_any_goes(STORE_TYPES[i]);
        operations_of_this_thread_finish_first(STORE_TYPES[i]);
        queued_operations_of_others_finish_first(STORE_TYPES[i]);
    }
    a_key_at_work_is_not_removed_in_time();
    return check_passed("api_remove");
}
