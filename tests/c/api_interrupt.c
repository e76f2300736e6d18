/* kv_set_interrupt: a check of the host ends the waits of its thread, and nothing else. */
#include "files.h"

/* Ends a call at the third question, and looks at what may be called meanwhile. */
typedef struct host {
    kv_store *store;
    int asked;
    int ends_at;
} host;

static int32_t ask_host(void *context) {
    host *my = context;
    int32_t role = -1;
    int64_t number = 0;
    kv_tensor out = number_tensor(&number);
    kv_key key = 2;
    if (my->store != NULL) {
        CHECK_STATUS(kv_pull(my->store, &key, &out, 1, 0, NULL), KV_ERR_REENTRANT);
        CHECK(error_says("signal handler"));
        CHECK_STATUS(kv_role(my->store, &role), KV_OK);
    }
    my->asked++;
    return my->asked == my->ends_at;
}

static kv_status pull_into(kv_store *store, kv_key key, int64_t *number) {
    kv_tensor out = number_tensor(number);
    return kv_pull(store, &key, &out, 1, 0, NULL);
}

static void a_check_ends_the_calls_of_its_thread(const char *type, const char *path) {
    kv_store *store = open_store(type);
    host my = {store, 0, 3};
    gate at = GATE_CLOSED;
    int64_t number = 5, got = -1;
    kv_key key = 1;
    init_number(store, 1, 10);
    init_number(store, 2, 20);
    CHECK_STATUS(kv_save(store, path), KV_OK);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    CHECK_STATUS(kv_set_interrupt(ask_host, &my), KV_OK);
    kv_ticket push = send_number(store, 1, &number, 0);
    gate_await(&at, 1);
    CHECK(my.asked == 0);
    CHECK_STATUS(pull_into(store, 1, &got), KV_ERR_CANCELLED);
    CHECK(error_says("interrupted"));
    CHECK(my.asked == 3 && got == -1);
    my.asked = 2;
    CHECK_STATUS(kv_remove(store, &key, 1), KV_ERR_CANCELLED);
    my.asked = 2;
    CHECK_STATUS(kv_wait(store, push, -1), KV_ERR_TIMEOUT);
    my.asked = 2;
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_ERR_TIMEOUT);
    my.asked = 2;
    CHECK_STATUS(kv_cancel(store, push), KV_ERR_TIMEOUT);
    my.asked = 2;
    CHECK_STATUS(kv_close(store, -1), KV_ERR_TIMEOUT);
    my.asked = 2;
    CHECK_STATUS(kv_save(store, "not written"), KV_ERR_CANCELLED);
    CHECK(access("not written", F_OK) != 0);
    my.asked = 2;
    CHECK_STATUS(kv_load(store, path), KV_ERR_CANCELLED);
    CHECK(error_says("interrupted"));
    CHECK_STATUS(kv_set_interrupt(NULL, NULL), KV_OK);
    gate_open(&at);
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_wait(store, push, WAIT_MS), KV_OK);
    CHECK(my.asked == 3);
    CHECK(pull_number(store, 1) == 15);
    CHECK_STATUS(kv_load(store, path), KV_OK);
    CHECK(pull_number(store, 1) == 10);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(5);
    const char *path = new_folder("model.safetensors");
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        a_check_ends_the_calls_of_its_thread(STORE_TYPES[i], path);
    }
    CHECK(remove(path) == 0);
    remove_folder();
    return check_passed("api_interrupt");
}
