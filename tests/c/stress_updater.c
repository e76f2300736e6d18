/* Updaters that are replaced while eight threads push: none is used after its context has ended. */
#include "stress.h"

static long rounds;

/* A context that knows whether it still lives; `calls` counts the pushes that it has merged. */
typedef struct life {
    atomic_int alive;
    atomic_long *calls;
    atomic_int *dropped;
} life;

static life *new_life(atomic_long *calls, atomic_int *dropped) {
    life *context = malloc(sizeof *context);
    CHECK(context != NULL);
    atomic_init(&context->alive, 1);
    context->calls = calls;
    context->dropped = dropped;
    return context;
}

static kv_status add_while_alive(void *context, kv_key key, const kv_tensor *input,
                                 const kv_tensor *stored) {
    life *own = context;
    CHECK(atomic_load(&own->alive) == 1);
    atomic_fetch_add(own->calls, 1);
    return add_number(NULL, key, input, stored);
}

static void end_life(void *context) {
    life *own = context;
    CHECK(atomic_exchange(&own->alive, 0) == 1);
    atomic_fetch_add(own->dropped, 1);
    free(own);
}

typedef struct counts {
    atomic_long calls;
    atomic_int made, dropped;
} counts;

static void set_new_updater(kv_store *store, counts *all) {
    atomic_fetch_add(&all->made, 1);
    CHECK_STATUS(kv_set_updater(store, add_while_alive, new_life(&all->calls, &all->dropped),
                                end_life),
                 KV_OK);
}

/* Two threads replace the updater, six push, half of them with tickets. */
static void push_or_replace(worker *self) {
    counts *all = self->shared;
    int64_t number = self->number + 1;
    for (long i = 0; i < rounds; i++) {
        if (self->number < 2) {
            set_new_updater(self->store, all);
        } else if (self->number % 2 == 0) {
            CHECK_STATUS(push_number(self->store, (kv_key)(i % 3), number), KV_OK);
        } else {
            kv_ticket ticket = send_number(self->store, (kv_key)(i % 3), &number, 0);
            CHECK_STATUS(kv_wait(self->store, ticket, WAIT_MS), KV_OK);
        }
    }
}

static void replaced_updaters_lose_no_push(const char *type) {
    kv_store *store = open_store(type);
    counts all = {0, 0, 0};
    int64_t sum = 0;
    for (kv_key key = 0; key < 3; key++) {
        init_number(store, key, 0);
    }
    set_new_updater(store, &all);
    run_together(store, &all, push_or_replace);
    for (kv_key key = 0; key < 3; key++) {
        sum += pull_number(store, key);
    }
    CHECK(sum == rounds * (SUM_OF_ALL - 1 - 2));
    CHECK(atomic_load(&all.calls) == rounds * (THREADS - 2));
    CHECK(atomic_load(&all.dropped) < atomic_load(&all.made));
    kv_free(store);
    CHECK(atomic_load(&all.dropped) == atomic_load(&all.made));
}

/* One key is in one updater at a time, several keys may be in several. */
static atomic_int inside[2];

static kv_status enter_and_leave(void *context, kv_key key, const kv_tensor *input,
                                 const kv_tensor *stored) {
    (void)context;
    CHECK(atomic_fetch_add(&inside[key], 1) == 0);
    int64_t before = *number_of(stored);
    if (before % 64 == 0) {
        sleep_ms(0); /* lets the others try */
    }
    *number_of(stored) = before + *number_of(input);
    CHECK(atomic_fetch_sub(&inside[key], 1) == 1);
    return KV_OK;
}

static void push_both_ways(worker *self) {
    int64_t one = 1;
    for (long i = 0; i < rounds; i++) {
        kv_key key = (kv_key)((self->number + i) % 2);
        if (self->number < 4) {
            CHECK_STATUS(push_number(self->store, key, 1), KV_OK);
        } else {
            kv_ticket ticket = send_number(self->store, key, &one, 0);
            CHECK_STATUS(kv_wait(self->store, ticket, WAIT_MS), KV_OK);
        }
    }
}

static void a_key_is_in_one_updater_at_a_time(const char *type) {
    kv_store *store = open_store(type);
    init_number(store, 0, 0);
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, enter_and_leave, NULL, NULL), KV_OK);
    run_together(store, NULL, push_both_ways);
    CHECK(pull_number(store, 0) + pull_number(store, 1) == rounds * THREADS);
    kv_free(store);
}

/* A failing updater with undo, beside pulls: nobody sees the spoilt value after the failure. */
static kv_status spoil_or_add(void *context, kv_key key, const kv_tensor *input,
                              const kv_tensor *stored) {
    if (*number_of(input) < 0) {
        *number_of(stored) = INT64_MIN;
        return KV_ERR_UNSUPPORTED;
    }
    return add_number(context, key, input, stored);
}

static void fail_or_look(worker *self) {
    for (long i = 0; i < rounds; i++) {
        if (self->number % 2 == 0) {
            CHECK_STATUS(push_number(self->store, 0, -1), KV_ERR_CALLBACK);
            CHECK_STATUS(push_number(self->store, 0, 1), KV_OK);
        } else {
            CHECK(pull_number(self->store, 0) >= 0);
        }
    }
}

static void undo_hides_what_a_failure_spoilt(void) {
    kv_store *store = open_with("updater_undo", "yes");
    init_number(store, 0, 0);
    CHECK_STATUS(kv_set_updater(store, spoil_or_add, NULL, NULL), KV_OK);
    run_together(store, NULL, fail_or_look);
    CHECK(pull_number(store, 0) == rounds * THREADS / 2);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(10);
    rounds = scaled(2000, 20);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        replaced_updaters_lose_no_push(STORE_TYPES[i]);
        a_key_is_in_one_updater_at_a_time(STORE_TYPES[i]);
    }
    undo_hides_what_a_failure_spoilt();
    return check_passed("stress_updater");
}
