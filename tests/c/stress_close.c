/* Closing and aborting while eight threads push: every call ends, every ticket has one result. */
#include "stress.h"

static long rounds;

typedef struct scene {
    atomic_long applied, unknown;
    atomic_int closed;
    void (*end)(kv_store *store);
} scene;

/* An operation that was at work during an abort may have taken effect or not. */
static void note_result(scene *all, kv_status status, int64_t number) {
    CHECK(status == KV_OK || status == KV_ERR_CLOSED || status == KV_ERR_CANCELLED);
    atomic_fetch_add(status == KV_OK ? &all->applied : &all->unknown, number);
}

/* Pushes with and without tickets until the store refuses. */
static void push_until_closed(worker *self) {
    scene *all = self->shared;
    int64_t number = self->number + 1;
    kv_tensor value = number_tensor(&number);
    kv_key key = (kv_key)(self->number % 2);
    for (;;) {
        kv_ticket ticket = 0;
        kv_status status = push_number(self->store, key, number);
        CHECK(status == KV_OK || status == KV_ERR_CLOSED);
        if (status != KV_OK) {
            return;
        }
        atomic_fetch_add(&all->applied, number);
        status = kv_push(self->store, &key, &value, 1, 0, &ticket);
        CHECK(status == KV_OK || status == KV_ERR_CLOSED);
        if (status != KV_OK) {
            return;
        }
        status = kv_wait(self->store, ticket, WAIT_MS);
        note_result(all, status, number);
    }
}

static void push_or_end(worker *self) {
    scene *all = self->shared;
    if (self->number == 0) {
        sleep_ms(5);
        all->end(self->store);
        atomic_store(&all->closed, 1);
    } else {
        push_until_closed(self);
    }
}

/* The updater keeps the sum outside: a closed store cannot be asked. */
static kv_status add_outside(void *context, kv_key key, const kv_tensor *input,
                             const kv_tensor *stored) {
    (void)key;
    (void)stored;
    border_of_library();
    atomic_fetch_add((atomic_long *)context, *number_of(input));
    border_of_library();
    return KV_OK;
}

static void end_beside_pushes(const char *type, void (*end)(kv_store *store)) {
    for (long i = 0; i < rounds; i++) {
        kv_store *store = open_store(type);
        atomic_long sum = 0;
        scene all = {.end = end};
        init_number(store, 0, 0);
        init_number(store, 1, 0);
        CHECK_STATUS(kv_set_updater(store, add_outside, &sum, NULL), KV_OK);
        run_together(store, &all, push_or_end);
        CHECK(atomic_load(&all.closed) == 1);
        CHECK_STATUS(push_number(store, 0, 1), KV_ERR_CLOSED);
        free_store(store);
        long applied = atomic_load(&all.applied);
        CHECK(atomic_load(&sum) >= applied);
        CHECK(atomic_load(&sum) <= applied + atomic_load(&all.unknown));
    }
}

/* The threads go on pushing: a close comes through when for a moment nothing is pending. */
static void close_until_done(kv_store *store) {
    kv_status status;
    do {
        status = kv_close(store, 20);
        CHECK(status == KV_OK || status == KV_ERR_TIMEOUT);
    } while (status != KV_OK);
}


static void *wait_for_all(void *context) {
    kv_status status = kv_wait_all(context, WAIT_MS);
    CHECK(status == KV_OK || status == KV_ERR_CLOSED);
    return NULL;
}

/* Waiters of all kinds, an operation at work, and an abort from an eighth thread. */
static void an_abort_leaves_no_waiter_behind(const char *type) {
    enum { WAITERS = 6 };
    for (long i = 0; i < rounds; i++) {
        kv_store *store = open_store(type);
        gate at = GATE_CLOSED;
        int64_t numbers[WAITERS + 1] = {0};
        pthread_t threads[WAITERS];
        init_number(store, 0, 0);
        CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
        for (int j = 0; j <= WAITERS; j++) {
            send_number(store, 0, &numbers[j], 0);
        }
        gate_await(&at, 1);
        for (int j = 0; j < WAITERS; j++) {
            CHECK(pthread_create(&threads[j], NULL, wait_for_all, store) == 0);
        }
        kv_abort(store);
        gate_open(&at);
        for (int j = 0; j < WAITERS; j++) {
            CHECK(pthread_join(threads[j], NULL) == 0);
        }
        CHECK(at.arrived == 1);
        free_store(store);
    }
}

/* Stores by the thousand, each with an operation under way when it is freed. */
static void open_and_free(worker *self) {
    int64_t number = self->number, got[4];
    for (long i = 0; i < rounds * 10; i++) {
        kv_store *store = open_store(STORE_TYPES[i % STORE_TYPE_COUNT]);
        init_number(store, 0, 0);
        for (int j = 0; j < 4; j++) {
            send_number(store, 0, &number, j);
            ask_number(store, 0, &got[j]);
        }
        free_store(store);
    }
}

int main(void) {
    alarm_after_minutes(10);
    rounds = scaled(30, 2);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        end_beside_pushes(STORE_TYPES[i], kv_abort);
        end_beside_pushes(STORE_TYPES[i], close_until_done);
        an_abort_leaves_no_waiter_behind(STORE_TYPES[i]);
    }
    run_together(NULL, NULL, open_and_free);
    return check_passed("stress_close");
}
