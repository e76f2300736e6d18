/* Tickets: order, waits, failures kept for later, priorities. Ends of loans: api_cancel.c. */
#include "support.h"

/* Pushes and pulls of one key take effect in call order; each pull sees what stood before it. */
static void operations_on_one_key_keep_their_order(const char *type) {
    enum { ROUNDS = 200 };
    static int64_t numbers[ROUNDS], got[ROUNDS];
    kv_store *store = open_store(type);
    kv_ticket before = 0;
    int64_t sum = 0;
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    for (int i = 0; i < ROUNDS; i++) {
        numbers[i] = i + 1;
        kv_ticket push = send_number(store, 1, &numbers[i], i % 7);
        kv_ticket pull = ask_number(store, 1, &got[i]);
        CHECK(before < push && push < pull);
        before = pull;
    }
    CHECK_STATUS(kv_wait(store, before, WAIT_MS), KV_OK);
    for (int i = 0; i < ROUNDS; i++) {
        sum += numbers[i];
        CHECK(got[i] == sum);
    }
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    kv_free(store);
}

/* A call without a ticket comes after those with one that this thread made before. */
static void calls_with_and_without_tickets_keep_their_order(const char *type) {
    kv_store *store = open_store(type);
    int64_t numbers[300];
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    for (int i = 0; i < 300; i++) {
        numbers[i] = 1;
        send_number(store, 1, &numbers[i], 0);
        if (i % 10 == 9) {
            CHECK(pull_number(store, 1) == i + 1 + i / 10);
            CHECK_STATUS(push_number(store, 1, 1), KV_OK);
        }
    }
    CHECK(pull_number(store, 1) == 330);
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    kv_free(store);
}

static void a_pushpull_with_a_ticket(const char *type) {
    kv_store *store = open_store(type);
    int64_t number = 5, got = 0;
    kv_key key = 1;
    kv_ticket ticket = 0;
    kv_tensor value = number_tensor(&number), out = number_tensor(&got);
    init_number(store, 1, 10);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    CHECK_STATUS(kv_pushpull(store, &key, &value, 1, &key, &out, 1, 0, &ticket), KV_OK);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    CHECK(got == 15);
    CHECK_STATUS(kv_pushpull(store, &key, &value, 1, &key, &value, 1, 0, &ticket), KV_OK);
    CHECK_STATUS(kv_wait(store, ticket, -1), KV_OK);
    CHECK(number == 20);
    kv_free(store);
}

/* Shapes, strides and tensors are copied at the call; only the elements are lent. */
static void only_elements_are_lent(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    int64_t first = 1, numbers[] = {7, -1, 8}, shape[] = {2}, strides[] = {2}, got[] = {0, 0};
    kv_key keys[] = {2};
    kv_ticket ticket = 0;
    kv_tensor value = kv_tensor_cpu(numbers, KV_I64, 1, shape);
    kv_tensor out = kv_tensor_cpu(got, KV_I64, 1, shape);
    value.strides = strides;
    init_number(store, 1, 0);
    CHECK_STATUS(kv_init(store, keys, &out, 1), KV_OK);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    send_number(store, 1, &first, 0);
    gate_await(&at, 1);
    CHECK_STATUS(kv_set_updater(store, NULL, NULL, NULL), KV_OK);
    CHECK_STATUS(kv_push(store, keys, &value, 1, 0, &ticket), KV_OK);
    memset(shape, 0x5a, sizeof shape);
    memset(strides, 0x5a, sizeof strides);
    memset(keys, 0x5a, sizeof keys);
    memset(&value, 0x5a, sizeof value);
    gate_open(&at);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    shape[0] = 2;
    keys[0] = 2;
    CHECK_STATUS(kv_pull(store, keys, &out, 1, 0, NULL), KV_OK);
    CHECK(got[0] == 7 && got[1] == 8);
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    kv_free(store);
}

static void a_wait_may_be_repeated_and_polls(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    int64_t number = 5;
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    CHECK_STATUS(kv_wait(store, ticket, 0), KV_ERR_TIMEOUT);
    CHECK_STATUS(kv_wait(store, ticket, -2), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_wait_all(store, -2), KV_ERR_INVALID_ARGUMENT);
    int64_t start = now_ms();
    CHECK_STATUS(kv_wait(store, ticket, 40), KV_ERR_TIMEOUT);
    CHECK(now_ms() - start >= 39);
    CHECK(error_says("key 1"));
    CHECK_STATUS(kv_wait_all(store, 0), KV_ERR_TIMEOUT);
    CHECK_STATUS(kv_wait_all(store, 20), KV_ERR_TIMEOUT);
    CHECK(error_says("key 1"));
    gate_open(&at);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(kv_wait(store, ticket, 0), KV_OK);
    }
    CHECK_STATUS(kv_wait_all(store, 0), KV_OK);
    CHECK(pull_number(store, 1) == 5);
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

static void any_thread_may_wait_for_a_ticket(const char *type) {
    enum { WAITERS = 4 };
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    int64_t number = 5;
    pthread_t threads[WAITERS];
    waiter waiters[WAITERS];
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    for (int i = 0; i < WAITERS; i++) {
        waiters[i] = (waiter){store, ticket, KV_ERR_TIMEOUT};
        CHECK(pthread_create(&threads[i], NULL, wait_for_it, &waiters[i]) == 0);
    }
    sleep_ms(20);
    gate_open(&at);
    for (int i = 0; i < WAITERS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        CHECK(waiters[i].status == KV_OK);
    }
    kv_free(store);
}

static void foreign_and_unissued_tickets_are_refused(const char *type) {
    kv_store *store = open_store(type), *other = open_store(type);
    int64_t number = 5;
    init_number(store, 1, 0);
    init_number(other, 1, 0);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    kv_ticket foreign = send_number(other, 1, &number, 0);
    kv_ticket bad[] = {0, ticket + 1, ticket ^ (kv_ticket)1 << 40, foreign, UINT64_MAX};
    CHECK(ticket >> 48 != foreign >> 48);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_STATUS(kv_wait(store, bad[i], 0), KV_ERR_TICKET);
        CHECK_STATUS(kv_cancel(store, bad[i]), KV_ERR_TICKET);
    }
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_wait(other, foreign, WAIT_MS), KV_OK);
    kv_free(store);
    kv_free(other);
}

/* Nothing to do is done at once, and still has a ticket. */
static void an_empty_operation_has_a_ticket(const char *type) {
    kv_store *store = open_store(type);
    kv_ticket tickets[4] = {0};
    CHECK_STATUS(kv_push(store, NULL, NULL, 0, 0, &tickets[0]), KV_OK);
    CHECK_STATUS(kv_pull(store, NULL, NULL, 0, 0, &tickets[1]), KV_OK);
    CHECK_STATUS(kv_pushpull(store, NULL, NULL, 0, NULL, NULL, 0, 0, &tickets[2]), KV_OK);
    CHECK_STATUS(kv_broadcast(store, NULL, NULL, 0, NULL, NULL, 0, 0, &tickets[3]), KV_OK);
    for (int i = 0; i < 4; i++) {
        CHECK(tickets[i] != 0);
        CHECK_STATUS(kv_wait(store, tickets[i], WAIT_MS), KV_OK);
    }
    kv_free(store);
}

/* Fails on negative numbers and says which. */
static kv_status refuse_negatives(void *context, kv_key key, const kv_tensor *input,
                                  const kv_tensor *stored) {
    char text[64];
    if (*number_of(input) >= 0) {
        return add_number(context, key, input, stored);
    }
    snprintf(text, sizeof text, "no negatives like %lld", (long long)*number_of(input));
    kv_set_callback_error(text);
    return KV_ERR_INVALID_ARGUMENT;
}

/* A failure that nobody waited for is told once, with the number of the others. */
static void failures_nobody_waited_for_are_told_once(const char *type) {
    kv_store *store = open_store(type);
    int64_t numbers[] = {1, -11, -22, -33, 4, -44};
    kv_ticket tickets[6];
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, refuse_negatives, NULL, NULL), KV_OK);
    for (int i = 0; i < 6; i++) {
        tickets[i] = send_number(store, 1, &numbers[i], 0);
    }
    CHECK_STATUS(kv_wait(store, tickets[5], WAIT_MS), KV_ERR_CALLBACK);
    CHECK(error_says("-44"));
    CHECK_STATUS(kv_wait(store, tickets[1], WAIT_MS), KV_ERR_CALLBACK);
    CHECK(error_says("-11"));
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_ERR_CALLBACK);
    CHECK(error_says("-22"));
    CHECK(error_says("1 more"));
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_wait(store, tickets[3], 0), KV_ERR_CALLBACK);
    CHECK(error_says("-33"));
    CHECK_STATUS(kv_wait(store, tickets[4], 0), KV_OK);
    CHECK(pull_number(store, 1) == 5);
    CHECK_STATUS(kv_close(store, WAIT_MS), KV_OK);
    kv_free(store);
}

/*
 * The last 65,536 operations that did not succeed are known, the last 1,024 of them with their
 * text; an older ticket is stale, whatever its result was.
 */
static void old_failures_are_forgotten(const char *type) {
    enum { KNOWN = 65536, WITH_TEXT = 1024, COUNT = KNOWN + 3 };
    static kv_ticket tickets[COUNT];
    kv_store *store = open_store(type);
    int64_t bad = -1, good = 1;
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, refuse_negatives, NULL, NULL), KV_OK);
    kv_ticket before = send_number(store, 1, &good, 0);
    for (int i = 0; i < COUNT; i++) {
        tickets[i] = send_number(store, 1, &bad, 0);
    }
    kv_ticket after = send_number(store, 1, &good, 0);
    CHECK_STATUS(kv_wait(store, after, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_wait(store, before, 0), KV_ERR_TICKET);
    for (int i = 0; i < COUNT - KNOWN; i++) {
        CHECK_STATUS(kv_wait(store, tickets[i], 0), KV_ERR_TICKET);
        CHECK_STATUS(kv_cancel(store, tickets[i]), KV_ERR_TICKET);
    }
    for (int i = COUNT - KNOWN; i < COUNT; i++) {
        CHECK_STATUS(kv_wait(store, tickets[i], 0), KV_ERR_CALLBACK);
        CHECK(i < COUNT - WITH_TEXT || error_says("no negatives like -1"));
    }
    CHECK_STATUS(kv_wait_all(store, 0), KV_OK);
    kv_free(store);
}

typedef struct journal {
    gate at;
    kv_key keys[16];
    int count;
} journal;

/* Key 0 waits at the gate; every other key is noted in the order of its turn. */
static kv_status note_key(void *context, kv_key key, const kv_tensor *input,
                          const kv_tensor *stored) {
    journal *notes = context;
    (void)input;
    (void)stored;
    if (key == 0) {
        gate_pass(&notes->at);
    } else {
        notes->keys[notes->count++] = key;
    }
    return KV_OK;
}

/* With one thread at work: among those that wait the larger priority, then the older. */
static void larger_priorities_run_earlier(void) {
    static const struct {
        kv_key key;
        int32_t priority;
    } calls[] = {{1, 0}, {2, -5}, {3, 7}, {4, 7}, {5, INT32_MIN}, {6, INT32_MAX}, {2, 9}};
    static const kv_key wanted[] = {6, 3, 4, 1, 2, 2, 5};
    enum { CALLS = 7 };
    kv_store *store = open_with("threads", "1");
    journal notes = {GATE_CLOSED, {0}, 0};
    int64_t number = 1;
    for (kv_key key = 0; key <= 6; key++) {
        init_number(store, key, 0);
    }
    CHECK_STATUS(kv_set_updater(store, note_key, &notes, NULL), KV_OK);
    send_number(store, 0, &number, 0);
    gate_await(&notes.at, 1);
    for (int i = 0; i < CALLS; i++) {
        send_number(store, calls[i].key, &number, calls[i].priority);
    }
    gate_open(&notes.at);
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    CHECK(notes.count == CALLS);
    CHECK(memcmp(notes.keys, wanted, sizeof wanted) == 0);
    kv_free(store);
}

/* A call without a ticket waits its turn as long as the option says, and is not applied then. */
static void a_call_without_a_ticket_times_out(void) {
    kv_store *store = open_with("timeout_ms", "40");
    gate at = GATE_CLOSED;
    int64_t number = 5, other = 7, got = (int64_t)UNTOUCHED;
    kv_key key = 1;
    kv_tensor value = number_tensor(&other), out = number_tensor(&got);
    init_number(store, 1, 0);
    init_number(store, 2, 0);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    gate_await(&at, 1);
    int64_t start = now_ms();
    CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL), KV_ERR_TIMEOUT);
    CHECK(now_ms() - start >= 39);
    CHECK(error_says("key 1"));
    CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_ERR_TIMEOUT);
    CHECK_STATUS(kv_pushpull(store, &key, &value, 1, &key, &out, 1, 0, NULL), KV_ERR_TIMEOUT);
    CHECK(got == (int64_t)UNTOUCHED);
    CHECK(pull_number(store, 2) == 0); /* another key does not wait */
    gate_open(&at);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    CHECK(pull_number(store, 1) == 5);
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    kv_free(store);
}

/* A time of 0 does not wait, and does what needs no wait. */
static void a_call_without_a_ticket_need_not_wait(void) {
    kv_store *store = open_with("timeout_ms", "0");
    gate at = GATE_CLOSED;
    int64_t number = 5;
    init_number(store, 1, 0);
    init_number(store, 2, 0);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    gate_await(&at, 1);
    CHECK_STATUS(push_number(store, 1, 7), KV_ERR_TIMEOUT);
    CHECK(pull_number(store, 2) == 0);
    gate_open(&at);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    CHECK_STATUS(push_number(store, 1, 7), KV_OK);
    CHECK(pull_number(store, 1) == 12);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(5);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        operations_on_one_key_keep_their_order(STORE_TYPES[i]);
        calls_with_and_without_tickets_keep_their_order(STORE_TYPES[i]);
        a_pushpull_with_a_ticket(STORE_TYPES[i]);
        only_elements_are_lent(STORE_TYPES[i]);
        a_wait_may_be_repeated_and_polls(STORE_TYPES[i]);
        any_thread_may_wait_for_a_ticket(STORE_TYPES[i]);
        foreign_and_unissued_tickets_are_refused(STORE_TYPES[i]);
        an_empty_operation_has_a_ticket(STORE_TYPES[i]);
        failures_nobody_waited_for_are_told_once(STORE_TYPES[i]);
        old_failures_are_forgotten(STORE_TYPES[i]);
    }
    larger_priorities_run_earlier();
    a_call_without_a_ticket_times_out();
    a_call_without_a_ticket_need_not_wait();
    return check_passed("api_ticket");
}
