/* The end of a store: kv_close, kv_abort, kv_free. */
#include "collectives.h"

/* Every call that needs an open store. */
static void check_refuses_work(kv_store *store) {
    int64_t number = 1;
    kv_tensor tensor = number_tensor(&number);
    kv_key key = 1;
    kv_ticket ticket = UNTOUCHED;
    CHECK_STATUS(kv_init(store, &key, &tensor, 1), KV_ERR_CLOSED);
    CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, NULL), KV_ERR_CLOSED);
    CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, &ticket), KV_ERR_CLOSED);
    CHECK_STATUS(kv_pull(store, &key, &tensor, 1, 0, NULL), KV_ERR_CLOSED);
    CHECK_STATUS(kv_pull(store, &key, &tensor, 1, 0, &ticket), KV_ERR_CLOSED);
    CHECK_STATUS(kv_pushpull(store, &key, &tensor, 1, &key, &tensor, 1, 0, NULL), KV_ERR_CLOSED);
    CHECK_STATUS(kv_broadcast(store, &key, &tensor, 1, &key, &tensor, 1, 0, NULL),
                 KV_ERR_CLOSED);
    CHECK_STATUS(kv_push_rows(store, &key, &tensor, &tensor, 1, 0, NULL), KV_ERR_CLOSED);
    CHECK_STATUS(kv_pull_rows(store, &key, &tensor, &tensor, 1, 0, &ticket), KV_ERR_CLOSED);
    check_collectives(store, KV_ERR_CLOSED, NULL);
    check_collectives(store, KV_ERR_CLOSED, &ticket);
    kv_bound *bound = NULL;
    CHECK_STATUS(kv_bind(store, &key, &tensor, 1, &key, &tensor, 1, &bound), KV_ERR_CLOSED);
    CHECK(bound == NULL);
    CHECK_STATUS(kv_remove(store, &key, 1), KV_ERR_CLOSED);
    CHECK_STATUS(kv_key_device(store, 1, &(kv_device){KV_CPU, 0}), KV_ERR_CLOSED);
    CHECK_STATUS(kv_digest(store, &key, &(kv_key_digest){0, 0, 0}, 1), KV_ERR_CLOSED);
    CHECK_STATUS(kv_last_round(store, key, &(kv_round){sizeof(kv_round), 0, 0, 0}), KV_ERR_CLOSED);
    CHECK_STATUS(kv_set_weight(store, 1), KV_ERR_CLOSED);
    CHECK_STATUS(kv_clear_weight(store), KV_ERR_CLOSED);
    CHECK_STATUS(kv_set_clipping(store, 1, 0), KV_ERR_CLOSED);
    CHECK_STATUS(kv_last_norm(store, &(double){0}, &(uint64_t){0}), KV_ERR_CLOSED);
    CHECK_STATUS(kv_begin(store), KV_ERR_CLOSED);
    CHECK_STATUS(kv_commit(store, &(int32_t){0}), KV_ERR_CLOSED);
    CHECK_STATUS(kv_rollback(store), KV_ERR_CLOSED);
    CHECK_STATUS(kv_set_optimizer_for(store, &key, 1, "sgd", NULL), KV_ERR_CLOSED);
    CHECK_STATUS(kv_save(store, "file"), KV_ERR_CLOSED);
    CHECK_STATUS(kv_load(store, "file"), KV_ERR_CLOSED);
    CHECK_STATUS(kv_load_values(store, "file", same_name, NULL), KV_ERR_CLOSED);
    CHECK_STATUS(kv_barrier(store, 0), KV_ERR_CLOSED);
    CHECK_STATUS(kv_done(store), KV_ERR_CLOSED);
    CHECK_STATUS(kv_resume(store, 0), KV_ERR_CLOSED);
    CHECK_STATUS(kv_group(store, "g", &(int32_t){0}, 1, &(kv_store *){NULL}), KV_ERR_CLOSED);
    CHECK_STATUS(kv_serve(store), KV_ERR_CLOSED);
    CHECK(ticket == UNTOUCHED);
}

static void a_closed_store_refuses_work(const char *type) {
    atomic_int drops = 0;
    kv_store *store = open_store(type);
    init_number(store, 1, 10);
    CHECK_STATUS(kv_close(store, -2), KV_ERR_INVALID_ARGUMENT);
    CHECK(pull_number(store, 1) == 10);
    CHECK_STATUS(kv_close(store, 0), KV_OK);
    check_refuses_work(store);
    CHECK_STATUS(kv_set_updater(store, add_number, &drops, count_drop), KV_ERR_CLOSED);
    CHECK(atomic_load(&drops) == 1);
    CHECK_STATUS(kv_close(store, 0), KV_OK);
    CHECK_STATUS(kv_close(store, -1), KV_OK);
    kv_free(store);
}

/* Closing waits for what is pending; too short a time leaves the store open. */
static void close_finishes_pending_operations(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    int64_t number = 5, got = 0;
    init_number(store, 1, 10);
    init_number(store, 2, 20);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    kv_ticket push = send_number(store, 1, &number, 0);
    kv_ticket pull = ask_number(store, 1, &got);
    CHECK_STATUS(kv_close(store, 0), KV_ERR_TIMEOUT);
    CHECK_STATUS(kv_close(store, 20), KV_ERR_TIMEOUT);
    CHECK(error_says("key 1"));
    CHECK(pull_number(store, 2) == 20);
    gate_open(&at);
    CHECK_STATUS(kv_close(store, WAIT_MS), KV_OK);
    CHECK(got == 15);
    CHECK_STATUS(kv_wait(store, push, 0), KV_OK);
    CHECK_STATUS(kv_wait(store, pull, 0), KV_OK);
    check_refuses_work(store);
    kv_free(store);
}

static kv_status fail_with_text(void *context, kv_key key, const kv_tensor *input,
                                const kv_tensor *stored) {
    (void)context;
    (void)key;
    (void)input;
    (void)stored;
    kv_set_callback_error("no more paper");
    return KV_ERR_TIMEOUT;
}

/* The failure that nobody waited for is what closing tells; the store is closed nevertheless. */
static void close_tells_a_failure_and_closes(const char *type) {
    kv_store *store = open_store(type);
    int64_t number = 5;
    init_number(store, 1, 10);
    CHECK_STATUS(kv_set_updater(store, fail_with_text, NULL, NULL), KV_OK);
    send_number(store, 1, &number, 0);
    send_number(store, 1, &number, 0);
    CHECK_STATUS(kv_close(store, WAIT_MS), KV_ERR_CALLBACK);
    CHECK(error_says("no more paper"));
    CHECK(error_says("1 more"));
    check_refuses_work(store);
    CHECK_STATUS(kv_close(store, WAIT_MS), KV_OK);
    kv_free(store);
}

typedef struct waiter {
    kv_store *store;
    kv_ticket ticket;
    kv_status status;
} waiter;

static void *wait_for_it(void *context) {
    waiter *at = context;
    at->status = kv_wait(at->store, at->ticket, WAIT_MS);
    return NULL;
}

static void *push_without_ticket(void *context) {
    waiter *at = context;
    at->status = push_number(at->store, 1, 1000);
    return NULL;
}

/* All that wait wake up with KV_ERR_CLOSED, while an updater still stands at the gate. */
static void abort_wakes_everybody_up(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    int64_t number = 5, got = (int64_t)UNTOUCHED;
    pthread_t threads[2];
    init_number(store, 1, 10);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    kv_ticket working = send_number(store, 1, &number, 0);
    kv_ticket waiting = ask_number(store, 1, &got);
    gate_await(&at, 1);
    waiter first = {store, waiting, KV_OK}, second = {store, 0, KV_OK};
    CHECK(pthread_create(&threads[0], NULL, wait_for_it, &first) == 0);
    CHECK(pthread_create(&threads[1], NULL, push_without_ticket, &second) == 0);
    sleep_ms(20);
    kv_abort(store);
    CHECK(pthread_join(threads[0], NULL) == 0);
    CHECK(pthread_join(threads[1], NULL) == 0);
    CHECK(first.status == KV_ERR_CLOSED);
    CHECK(second.status == KV_ERR_CLOSED);
    CHECK_STATUS(kv_wait(store, waiting, 0), KV_ERR_CLOSED);
    check_refuses_work(store);

    /* The one at work keeps its loan until its ticket gives something else than a timeout. */
    CHECK_STATUS(kv_wait(store, working, 0), KV_ERR_TIMEOUT);
    gate_open(&at);
    kv_status status = kv_wait(store, working, WAIT_MS);
    CHECK(status == KV_OK || status == KV_ERR_CLOSED);
    CHECK_STATUS(kv_wait(store, working, 0), status);
    CHECK(got == (int64_t)UNTOUCHED);
    kv_abort(store);
    kv_free(store);
}

/* The second key of the push at work is not begun any more. */
static void abort_stops_a_push_after_its_key(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    int64_t numbers[] = {5, 7};
    kv_key keys[] = {1, 2};
    kv_tensor values[] = {number_tensor(&numbers[0]), number_tensor(&numbers[1])};
    kv_ticket ticket = 0;
    init_number(store, 1, 0);
    init_number(store, 2, 0);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    CHECK_STATUS(kv_push(store, keys, values, 2, 0, &ticket), KV_OK);
    gate_await(&at, 1);
    kv_abort(store);
    gate_open(&at);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_ERR_CLOSED);
    CHECK(at.arrived == 1);
    kv_free(store);
}

static kv_status abort_inside(void *context, kv_key key, const kv_tensor *input,
                              const kv_tensor *stored) {
    kv_abort(context);
    return add_number(NULL, key, input, stored);
}

static void abort_works_inside_an_updater(const char *type) {
    kv_store *store = open_store(type);
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, abort_inside, store, NULL), KV_OK);
    kv_status status = push_number(store, 1, 5);
    CHECK(status == KV_OK || status == KV_ERR_CLOSED);
    check_refuses_work(store);
    kv_free(store);
}

/* A free withdraws what waits; the buffers of all of it are the caller's then. */
static void free_withdraws_pending_operations(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    atomic_int drops = 0;
    int64_t number = 5, got = (int64_t)UNTOUCHED;
    init_number(store, 1, 10);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    send_number(store, 1, &number, 0);
    gate_await(&at, 1);
    CHECK_STATUS(kv_set_updater(store, add_number, &drops, count_drop), KV_OK);
    send_number(store, 1, &number, 0);
    ask_number(store, 1, &got);
    gate_open(&at);
    kv_free(store);
    CHECK(atomic_load(&drops) == 1);
    CHECK(got == (int64_t)UNTOUCHED || got == 15 || got == 20);
}

/* An updater that does not return: kv_free waits for `timeout_ms`, and no longer. */
static void free_is_bounded(void) {
    /* For the life of the process: the updater uses them after this function. */
    static gate at = GATE_CLOSED;
    static int64_t number = 5;
    kv_store *store = open_with("timeout_ms", "50");
    init_number(store, 1, 10);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    send_number(store, 1, &number, 0);
    gate_await(&at, 1);
    int64_t start = now_ms();
    kv_free(store);
    CHECK(now_ms() - start >= 49);
    CHECK(now_ms() - start < WAIT_MS);
    gate_open(&at);
    sleep_ms(50); /* the updater returns into the library, which must not mind */
}

int main(void) {
    alarm_after_minutes(5);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        a_closed_store_refuses_work(STORE_TYPES[i]);
        close_finishes_pending_operations(STORE_TYPES[i]);
        close_tells_a_failure_and_closes(STORE_TYPES[i]);
        abort_wakes_everybody_up(STORE_TYPES[i]);
        abort_stops_a_push_after_its_key(STORE_TYPES[i]);
        abort_works_inside_an_updater(STORE_TYPES[i]);
        free_withdraws_pending_operations(STORE_TYPES[i]);
    }
    free_is_bounded();
    kv_abort(NULL);
    kv_free(NULL);
    return check_passed("api_close");
}
