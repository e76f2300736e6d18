/* Eight threads with tickets: waits by others, cancels, calls with and without in between. */
#include "stress.h"

static long rounds;

/* How many operations a thread has under way. */
enum { WINDOW = 16 };

/* A window of pushes to one key; thread t pushes t + 1, and sees its own pushes in pulls. */
static void push_with_tickets(worker *self) {
    int64_t number = self->number + 1, got[WINDOW];
    kv_ticket tickets[WINDOW];
    for (long i = 0; i < rounds; i += WINDOW) {
        for (int j = 0; j < WINDOW; j++) {
            tickets[j] = j % 4 == 3 ? ask_number(self->store, 0, &got[j])
                                    : send_number(self->store, 0, &number, self->number);
        }
        for (int j = WINDOW - 1; j >= 0; j--) {
            CHECK_STATUS(kv_wait(self->store, tickets[j], WAIT_MS), KV_OK);
        }
        end_of_loan(got, sizeof got);
        for (int j = 3; j < WINDOW; j += 4) {
            long own = i / WINDOW * (WINDOW / 4 * 3) + (j + 1) / 4 * 3;
            CHECK(got[j] >= own * number);
        }
        if (i / WINDOW % 8 == 0) {
            CHECK_STATUS(push_number(self->store, 1, number), KV_OK);
        }
    }
}

static void no_update_of_one_key_is_lost(const char *type, const char *threads) {
    kv_config *config = NULL;
    kv_store *store = NULL;
    CHECK_STATUS(kv_config_create(&config), KV_OK);
    CHECK_STATUS(kv_config_set(config, "threads", threads), KV_OK);
    CHECK_STATUS(kv_create(type, config, &store), KV_OK);
    kv_config_free(config);
    init_number(store, 0, 0);
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    run_together(store, NULL, push_with_tickets);
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    long windows = (rounds + WINDOW - 1) / WINDOW;
    CHECK(pull_number(store, 0) == windows * (WINDOW / 4 * 3) * SUM_OF_ALL);
    CHECK(pull_number(store, 1) == (windows + 7) / 8 * SUM_OF_ALL);
    kv_free(store);
}

/* Lists over several keys, so that operations wait for more than one before them. */
static void push_lists_with_tickets(worker *self) {
    int64_t number = self->number + 1;
    kv_ticket tickets[WINDOW];
    kv_tensor value = number_tensor(&number), values[] = {value, value, value};
    for (long i = 0; i < rounds; i += WINDOW) {
        for (int j = 0; j < WINDOW; j++) {
            kv_key first = (kv_key)((self->number + j) % THREADS);
            kv_key keys[] = {first, (first + 3) % THREADS, (first + 5) % THREADS};
            CHECK_STATUS(kv_push(self->store, keys, values, 3, j, &tickets[j]), KV_OK);
        }
        for (int j = 0; j < WINDOW; j++) {
            CHECK_STATUS(kv_wait(self->store, tickets[j], WAIT_MS), KV_OK);
        }
    }
}

static void lists_that_cross_do_not_deadlock(const char *type) {
    kv_store *store = open_store(type);
    int64_t sum = 0;
    for (kv_key key = 0; key < THREADS; key++) {
        init_number(store, key, 0);
    }
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    run_together(store, NULL, push_lists_with_tickets);
    for (kv_key key = 0; key < THREADS; key++) {
        sum += pull_number(store, key);
    }
    long windows = (rounds + WINDOW - 1) / WINDOW;
    CHECK(sum == windows * WINDOW * 3 * SUM_OF_ALL);
    kv_free(store);
}

/* What the tickets said. */
typedef struct balance {
    atomic_long applied, cancelled;
} balance;

/* Every third push is cancelled at once; its ticket tells whether it took effect. */
static void push_and_cancel(worker *self) {
    balance *sums = self->shared;
    int64_t number = self->number + 1;
    kv_ticket tickets[WINDOW];
    for (long i = 0; i < rounds; i += WINDOW) {
        for (int j = 0; j < WINDOW; j++) {
            tickets[j] = send_number(self->store, (kv_key)(j % 3), &number, j);
            if (j % 3 == 2) {
                CHECK_STATUS(kv_cancel(self->store, tickets[j - 1]), KV_OK);
            }
        }
        for (int j = 0; j < WINDOW; j++) {
            kv_status status = kv_wait(self->store, tickets[j], WAIT_MS);
            CHECK(status == KV_OK || (status == KV_ERR_CANCELLED && j % 3 == 1));
            atomic_fetch_add(status == KV_OK ? &sums->applied : &sums->cancelled, number);
        }
    }
}

static void cancels_and_values_agree(const char *type) {
    kv_store *store = open_store(type);
    balance sums = {0, 0};
    int64_t stored = 0;
    for (kv_key key = 0; key < 3; key++) {
        init_number(store, key, 0);
    }
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    run_together(store, &sums, push_and_cancel);
    for (kv_key key = 0; key < 3; key++) {
        stored += pull_number(store, key);
    }
    long windows = (rounds + WINDOW - 1) / WINDOW;
    CHECK(stored == atomic_load(&sums.applied));
    CHECK(stored + atomic_load(&sums.cancelled) == windows * WINDOW * SUM_OF_ALL);
    CHECK_STATUS(kv_wait_all(store, 0), KV_OK);
    kv_free(store);
}

/* Tickets that one thread issues and another one waits for. */
typedef struct handover {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    kv_ticket ticket[THREADS / 2];
} handover;

static const kv_ticket ALL_DONE = UINT64_MAX;

static void put(handover *at, int place, kv_ticket ticket) {
    pthread_mutex_lock(&at->lock);
    while (at->ticket[place] != 0) {
        pthread_cond_wait(&at->changed, &at->lock);
    }
    at->ticket[place] = ticket;
    pthread_cond_broadcast(&at->changed);
    pthread_mutex_unlock(&at->lock);
}

static kv_ticket take(handover *at, int place) {
    pthread_mutex_lock(&at->lock);
    while (at->ticket[place] == 0) {
        pthread_cond_wait(&at->changed, &at->lock);
    }
    kv_ticket ticket = at->ticket[place];
    at->ticket[place] = 0;
    pthread_cond_broadcast(&at->changed);
    pthread_mutex_unlock(&at->lock);
    return ticket;
}

/* Even threads push; each odd one waits for the tickets of the one before it. */
static void push_or_wait(worker *self) {
    static int64_t ones[THREADS];
    handover *at = self->shared;
    int place = self->number / 2;
    if (self->number % 2 == 0) {
        ones[self->number] = 1;
        for (long i = 0; i < rounds; i++) {
            put(at, place, send_number(self->store, 0, &ones[self->number], 0));
        }
        put(at, place, ALL_DONE);
        return;
    }
    for (kv_ticket ticket; (ticket = take(at, place)) != ALL_DONE;) {
        CHECK_STATUS(kv_wait(self->store, ticket, WAIT_MS), KV_OK);
        CHECK_STATUS(kv_wait(self->store, ticket, 0), KV_OK);
    }
}

static void other_threads_wait(const char *type) {
    kv_store *store = open_store(type);
    handover at = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, {0}};
    init_number(store, 0, 0);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    run_together(store, &at, push_or_wait);
    CHECK(pull_number(store, 0) == rounds * (THREADS / 2));
    kv_free(store);
}

static kv_status refuse_negatives(void *context, kv_key key, const kv_tensor *input,
                                  const kv_tensor *stored) {
    return *number_of(input) < 0 ? KV_ERR_UNSUPPORTED : add_number(context, key, input, stored);
}

/* Failures among successes, and wait_all from all threads. */
static void fail_now_and_then(worker *self) {
    int64_t good = 1, bad = -1;
    for (long i = 0; i < rounds; i += 4) {
        kv_ticket first = send_number(self->store, 0, &good, 0);
        kv_ticket second = send_number(self->store, 0, &bad, 0);
        kv_status status = kv_wait_all(self->store, WAIT_MS);
        CHECK(status == KV_OK || status == KV_ERR_CALLBACK);
        CHECK_STATUS(kv_wait(self->store, first, 0), KV_OK);
        CHECK_STATUS(kv_wait(self->store, second, 0), KV_ERR_CALLBACK);
    }
}

static void failures_do_not_stop_the_others(const char *type) {
    kv_store *store = open_store(type);
    init_number(store, 0, 0);
    CHECK_STATUS(kv_set_updater(store, refuse_negatives, NULL, NULL), KV_OK);
    run_together(store, NULL, fail_now_and_then);
    CHECK(pull_number(store, 0) == (rounds + 3) / 4 * THREADS);
    CHECK_STATUS(kv_close(store, WAIT_MS), KV_OK);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(10);
    rounds = scaled(3200, 32);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        no_update_of_one_key_is_lost(STORE_TYPES[i], "1");
        no_update_of_one_key_is_lost(STORE_TYPES[i], "4");
        lists_that_cross_do_not_deadlock(STORE_TYPES[i]);
        cancels_and_values_agree(STORE_TYPES[i]);
        other_threads_wait(STORE_TYPES[i]);
        failures_do_not_stop_the_others(STORE_TYPES[i]);
    }
    return check_passed("stress_ticket");
}
