/*
 * support.h - stores, single numbers and gates for the test programs.
 *
 * Programs that are not about numbers use 64-bit integers of no dimension: exact, and one line to
 * push or pull.
 */
#ifndef SUPPORT_H
#define SUPPORT_H

#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* No wait of a test is longer. */
#define WAIT_MS 60000

/* What outputs are set to before a call that must leave them alone. */
#define UNTOUCHED 0x5a5a5a5a5a5a5a5aULL

/* Both local types; a test that has no reason to differ runs on each. */
static const char *const STORE_TYPES[] = {"local", "device"};
enum { STORE_TYPE_COUNT = 2 };

/* `full`, or `small` when KV_TEST_SCALE=small asks for a run under a slow tool. */
static inline long scaled(long full, long small) {
    const char *scale = getenv("KV_TEST_SCALE");
    return scale != NULL && strcmp(scale, "small") == 0 ? small : full;
}

/* A program that stands still for so long is ended by SIGALRM. */
static inline void alarm_after_minutes(unsigned minutes) {
    alarm(minutes * 60);
}

/* True if the last failed call of this thread left a message that contains `text`. */
static inline int error_says(const char *text) {
    return strstr(kv_last_error(), text) != NULL;
}

static inline kv_store *open_store(const char *type) {
    kv_store *store = NULL;
    CHECK_STATUS(kv_create(type, NULL, &store), KV_OK);
    CHECK(store != NULL);
    return store;
}

/* A local store with one option set. */
static inline kv_store *open_with(const char *option, const char *value) {
    kv_config *config = NULL;
    kv_store *store = NULL;
    CHECK_STATUS(kv_config_create(&config), KV_OK);
    CHECK_STATUS(kv_config_set(config, option, value), KV_OK);
    CHECK_STATUS(kv_create("local", config, &store), KV_OK);
    kv_config_free(config);
    return store;
}

static inline kv_tensor number_tensor(int64_t *number) {
    return kv_tensor_cpu(number, KV_I64, 0, NULL);
}

static inline void init_number(kv_store *store, kv_key key, int64_t number) {
    kv_tensor value = number_tensor(&number);
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
}

static inline kv_status push_number(kv_store *store, kv_key key, int64_t number) {
    kv_tensor value = number_tensor(&number);
    border_of_library();
    return kv_push(store, &key, &value, 1, 0, NULL);
}

static inline int64_t pull_number(kv_store *store, kv_key key) {
    int64_t number = -1;
    kv_tensor out = number_tensor(&number);
    CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
    return number;
}

/* Pushes with a ticket; `number` is lent until the ticket completes. */
static inline kv_ticket send_number(kv_store *store, kv_key key, int64_t *number,
                                    int32_t priority) {
    kv_tensor value = number_tensor(number);
    kv_ticket ticket = 0;
    CHECK_STATUS(kv_push(store, &key, &value, 1, priority, &ticket), KV_OK);
    CHECK(ticket != 0);
    return ticket;
}

/* Pulls with a ticket; `number` is lent until the ticket completes. */
static inline kv_ticket ask_number(kv_store *store, kv_key key, int64_t *number) {
    kv_tensor out = number_tensor(number);
    kv_ticket ticket = 0;
    CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, &ticket), KV_OK);
    CHECK(ticket != 0);
    return ticket;
}

/* The number that an updater was given. */
static inline int64_t *number_of(const kv_tensor *tensor) {
    return (int64_t *)((char *)tensor->data + tensor->byte_offset);
}

/* stored += input, on numbers; the context may be NULL. */
static inline kv_status add_number(void *context, kv_key key, const kv_tensor *input,
                                   const kv_tensor *stored) {
    (void)context;
    (void)key;
    border_of_library();
    *number_of(stored) += *number_of(input);
    border_of_library();
    return KV_OK;
}

/* Leaves a tensor of a file its name. */
static inline kv_status same_name(void *context, const char *tensor, const char **key) {
    (void)context;
    border_of_library();
    CHECK(*key == tensor);
    return KV_OK;
}

/* Counts one more end of a context; the context is an atomic_int. */
static inline void count_drop(void *context) {
    border_of_library();
    atomic_fetch_add((atomic_int *)context, 1);
}

static inline int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline void sleep_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&time, &time) != 0 && errno == EINTR) {
    }
}

/* A place where updaters stand still until the test lets them go. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int open;
    int arrived;
} gate;

#define GATE_CLOSED {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0}

/* Waits for one change of the gate, with the lock held; a test never waits longer than WAIT_MS. */
static inline void gate_wait(gate *at) {
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += WAIT_MS / 1000;
    CHECK(pthread_cond_timedwait(&at->changed, &at->lock, &deadline) == 0);
}

static inline void gate_pass(gate *at) {
    pthread_mutex_lock(&at->lock);
    at->arrived++;
    pthread_cond_broadcast(&at->changed);
    while (!at->open) {
        gate_wait(at);
    }
    pthread_mutex_unlock(&at->lock);
}

/* Returns when `count` calls of gate_pass() have arrived since the gate was made. */
static inline void gate_await(gate *at, int count) {
    pthread_mutex_lock(&at->lock);
    while (at->arrived < count) {
        gate_wait(at);
    }
    pthread_mutex_unlock(&at->lock);
}

static inline void gate_open(gate *at) {
    pthread_mutex_lock(&at->lock);
    at->open = 1;
    pthread_cond_broadcast(&at->changed);
    pthread_mutex_unlock(&at->lock);
}

/* stored += input behind a gate, which is the context. */
static inline kv_status add_behind_gate(void *context, kv_key key, const kv_tensor *input,
                                        const kv_tensor *stored) {
    border_of_library();
    gate_pass(context);
    return add_number(NULL, key, input, stored);
}

#endif /* SUPPORT_H */
