/* kv_cancel: when it returns, the buffers are the caller's again. */
#include "support.h"

/* An operation that has not begun is withdrawn; those around it take effect. */
static void a_waiting_push_is_withdrawn(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    int64_t numbers[] = {1, 20, 300};
    kv_ticket tickets[3];
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    for (int i = 0; i < 3; i++) {
        tickets[i] = send_number(store, 1, &numbers[i], 0);
    }
    gate_await(&at, 1);
    CHECK_STATUS(kv_cancel(store, tickets[1]), KV_OK);
    numbers[1] = 5000; /* ours again */
    CHECK_STATUS(kv_wait(store, tickets[1], 0), KV_ERR_CANCELLED);
    CHECK_STATUS(kv_cancel(store, tickets[1]), KV_OK);
    gate_open(&at);
    CHECK_STATUS(kv_wait(store, tickets[2], WAIT_MS), KV_OK);
    CHECK_STATUS(kv_wait(store, tickets[0], 0), KV_OK);
    CHECK_STATUS(kv_wait(store, tickets[1], 0), KV_ERR_CANCELLED);
    CHECK(pull_number(store, 1) == 301);
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    kv_free(store);
}

static void a_waiting_pull_writes_nothing(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    int64_t number = 1, got = (int64_t)UNTOUCHED;
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    send_number(store, 1, &number, 0);
    kv_ticket pull = ask_number(store, 1, &got);
    gate_await(&at, 1);
    CHECK_STATUS(kv_cancel(store, pull), KV_OK);
    gate_open(&at);
    CHECK_STATUS(kv_wait(store, pull, WAIT_MS), KV_ERR_CANCELLED);
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    CHECK(got == (int64_t)UNTOUCHED);
    kv_free(store);
}

/* The order of a thread's calls holds across one that was withdrawn between them. */
static void those_after_a_cancelled_one_do_not_overtake(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    int64_t numbers[] = {1, 20}, got = 0;
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    send_number(store, 1, &numbers[0], 0);
    kv_ticket middle = send_number(store, 1, &numbers[1], 0);
    kv_ticket pull = ask_number(store, 1, &got);
    gate_await(&at, 1);
    CHECK_STATUS(kv_cancel(store, middle), KV_OK);
    CHECK_STATUS(kv_wait(store, pull, 30), KV_ERR_TIMEOUT);
    gate_open(&at);
    CHECK_STATUS(kv_wait(store, pull, WAIT_MS), KV_OK);
    CHECK(got == 1);
    kv_free(store);
}

static void a_finished_operation_stays_as_it_is(const char *type) {
    kv_store *store = open_store(type);
    int64_t number = 5;
    init_number(store, 1, 0);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_cancel(store, ticket), KV_OK);
    CHECK_STATUS(kv_wait(store, ticket, 0), KV_OK);
    CHECK(pull_number(store, 1) == 5);
    kv_free(store);
}

static kv_status always_fail(void *context, kv_key key, const kv_tensor *input,
                             const kv_tensor *stored) {
    (void)context;
    (void)key;
    (void)input;
    (void)stored;
    return KV_ERR_UNSUPPORTED;
}

static void a_failed_operation_keeps_its_error(const char *type) {
    kv_store *store = open_store(type);
    int64_t number = 5;
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, always_fail, NULL, NULL), KV_OK);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_ERR_CALLBACK);
    CHECK_STATUS(kv_cancel(store, ticket), KV_OK);
    CHECK_STATUS(kv_wait(store, ticket, 0), KV_ERR_CALLBACK);
    kv_free(store);
}

typedef struct canceller {
    kv_store *store;
    kv_ticket ticket;
    kv_status status;
    atomic_int returned;
} canceller;

static void *cancel_it(void *context) {
    canceller *at = context;
    at->status = kv_cancel(at->store, at->ticket);
    atomic_store(&at->returned, 1);
    return NULL;
}

/* A push at work stops after the key it is at: that one is applied, the next one is not. */
static void a_push_at_work_stops_after_its_key(const char *type) {
    gate at = GATE_CLOSED;
    canceller other = {.store = open_store(type)};
    kv_store *store = other.store;
    int64_t numbers[] = {5, 7};
    kv_key keys[] = {1, 2};
    kv_tensor values[] = {number_tensor(&numbers[0]), number_tensor(&numbers[1])};
    pthread_t thread;
    init_number(store, 1, 0);
    init_number(store, 2, 0);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    CHECK_STATUS(kv_push(store, keys, values, 2, 0, &other.ticket), KV_OK);
    gate_await(&at, 1);
    CHECK(pthread_create(&thread, NULL, cancel_it, &other) == 0);
    sleep_ms(40);
    CHECK(atomic_load(&other.returned) == 0); /* the loan has not ended */
    gate_open(&at);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(other.status == KV_OK);
    CHECK_STATUS(kv_wait(store, other.ticket, 0), KV_ERR_CANCELLED);
    CHECK(pull_number(store, 1) == 5);
    CHECK(pull_number(store, 2) == 0);
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    kv_free(store);
}

/* stored += input; at one key behind a gate. */
typedef struct gate_of_key {
    gate at;
    kv_key key;
} gate_of_key;

static kv_status add_with_gate_at_one_key(void *context, kv_key key, const kv_tensor *input,
                                          const kv_tensor *stored) {
    gate_of_key *door = context;
    border_of_library();
    if (key == door->key) {
        gate_pass(&door->at);
    }
    return add_number(NULL, key, input, stored);
}

/* Cancels a push of three keys at the second one, and checks what its text says of the third. */
static void a_cancelled_push_names(kv_store *store, kv_key keys[3], const char *text) {
    gate_of_key door = {GATE_CLOSED, keys[1]};
    canceller other = {.store = store};
    int64_t numbers[] = {5, 7, 9};
    kv_tensor values[3];
    pthread_t thread;
    for (int i = 0; i < 3; i++) {
        init_number(store, keys[i], 0);
        values[i] = number_tensor(&numbers[i]);
    }
    CHECK_STATUS(kv_set_updater(store, add_with_gate_at_one_key, &door, NULL), KV_OK);
    CHECK_STATUS(kv_push(store, keys, values, 3, 0, &other.ticket), KV_OK);
    gate_await(&door.at, 1);
    CHECK(pthread_create(&thread, NULL, cancel_it, &other) == 0);
    sleep_ms(40);
    gate_open(&door.at);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(other.status == KV_OK);
    CHECK_STATUS(kv_wait(store, other.ticket, 0), KV_ERR_CANCELLED);
    CHECK(error_says(text));
    for (int i = 0; i < 3; i++) {
        CHECK(pull_number(store, keys[i]) == (i < 2 ? numbers[i] : 0));
    }
    /* It stays so however often it is asked for. */
    CHECK_STATUS(kv_wait(store, other.ticket, 0), KV_ERR_CANCELLED);
    CHECK(error_says(text));
    kv_free(store);
}

static void the_text_says_from_which_key_on_nothing_has_changed(const char *type) {
    kv_store *store = open_store(type);
    kv_key keys[] = {1, 2, 3};
    a_cancelled_push_names(store, keys, "key 3 and those after it are unchanged");
    store = open_store(type);
    static const char *const names[] = {"first", "second", "third"};
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(kv_intern(store, names[i], &keys[i]), KV_OK);
    }
    a_cancelled_push_names(store, keys, "\"third\" and those after it are unchanged");
}

/* An operation that is withdrawn has done nothing, and says which one it was. */
static void the_text_of_a_withdrawn_push_names_it(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    int64_t numbers[] = {1, 20};
    init_number(store, 7, 0);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    send_number(store, 7, &numbers[0], 0);
    kv_ticket withdrawn = send_number(store, 7, &numbers[1], 0);
    gate_await(&at, 1);
    CHECK_STATUS(kv_cancel(store, withdrawn), KV_OK);
    CHECK_STATUS(kv_wait(store, withdrawn, 0), KV_ERR_CANCELLED);
    CHECK(error_says("push of key 7 was cancelled before it began; nothing has changed"));
    gate_open(&at);
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    kv_free(store);
}

/* At its last key the operation takes effect in full, and its ticket says so. */
static void a_push_at_its_last_key_has_succeeded(const char *type) {
    gate at = GATE_CLOSED;
    canceller other = {.store = open_store(type)};
    int64_t number = 5;
    pthread_t thread;
    init_number(other.store, 1, 0);
    CHECK_STATUS(kv_set_updater(other.store, add_behind_gate, &at, NULL), KV_OK);
    other.ticket = send_number(other.store, 1, &number, 0);
    gate_await(&at, 1);
    CHECK(pthread_create(&thread, NULL, cancel_it, &other) == 0);
    sleep_ms(20);
    gate_open(&at);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(other.status == KV_OK);
    CHECK_STATUS(kv_wait(other.store, other.ticket, 0), KV_OK);
    CHECK(pull_number(other.store, 1) == 5);
    kv_free(other.store);
}

/* An updater that does not return in time: the buffers stay lent. */
static void a_cancel_gives_up_in_time(void) {
    kv_store *store = open_with("timeout_ms", "30");
    gate at = GATE_CLOSED;
    int64_t number = 5;
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    gate_await(&at, 1);
    CHECK_STATUS(kv_cancel(store, ticket), KV_ERR_TIMEOUT);
    CHECK(error_says("key 1"));
    gate_open(&at);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    kv_free(store);
}

/* The buffers of a cancelled operation may go at once: a memory checker sees who reads them. */
static void buffers_may_be_freed_after_a_cancel(const char *type) {
    enum { COUNT = 300000 };
    int64_t shape[] = {COUNT};
    kv_store *store = open_store(type);
    float *first = calloc(COUNT, sizeof *first);
    kv_key key = 1;
    CHECK(first != NULL);
    kv_tensor value = kv_tensor_cpu(first, KV_F32, 1, shape);
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    for (long round = 0; round < scaled(100, 10); round++) {
        float *data = calloc(COUNT, sizeof *data), *got = calloc(COUNT, sizeof *got);
        kv_ticket push = 0, pull = 0;
        CHECK(data != NULL && got != NULL);
        value.data = data;
        kv_tensor out = kv_tensor_cpu(got, KV_F32, 1, shape);
        CHECK_STATUS(kv_push(store, &key, &value, 1, 0, &push), KV_OK);
        CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, &pull), KV_OK);
        CHECK_STATUS(kv_cancel(store, pull), KV_OK);
        free(got);
        CHECK_STATUS(kv_cancel(store, push), KV_OK);
        free(data);
        kv_status status = kv_wait(store, push, 0);
        CHECK(status == KV_OK || status == KV_ERR_CANCELLED);
    }
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    free(first);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(5);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        a_waiting_push_is_withdrawn(STORE_TYPES[i]);
        a_waiting_pull_writes_nothing(STORE_TYPES[i]);
        those_after_a_cancelled_one_do_not_overtake(STORE_TYPES[i]);
        a_finished_operation_stays_as_it_is(STORE_TYPES[i]);
        a_failed_operation_keeps_its_error(STORE_TYPES[i]);
        a_push_at_work_stops_after_its_key(STORE_TYPES[i]);
        the_text_says_from_which_key_on_nothing_has_changed(STORE_TYPES[i]);
        the_text_of_a_withdrawn_push_names_it(STORE_TYPES[i]);
        a_push_at_its_last_key_has_succeeded(STORE_TYPES[i]);
        buffers_may_be_freed_after_a_cancel(STORE_TYPES[i]);
    }
    a_cancel_gives_up_in_time();
    return check_passed("api_cancel");
}
