/*
 * fault.h - stores that panic at a named point. Only a library built with the cargo feature
 * `fault-injection` has the option `fault`; no release does.
 */
#ifndef FAULT_H
#define FAULT_H

#include "collectives.h"

/* Where standard output and standard error went before hush(). */
typedef struct silence {
    FILE *heard;
    int ends[2];
} silence;

/* Sends what the process prints to a file, until check_silence(). */
static inline silence hush(void) {
    silence now = {tmpfile(), {dup(STDOUT_FILENO), dup(STDERR_FILENO)}};
    CHECK(now.heard != NULL && now.ends[0] >= 0 && now.ends[1] >= 0);
    fflush(NULL);
    CHECK(dup2(fileno(now.heard), STDOUT_FILENO) >= 0);
    CHECK(dup2(fileno(now.heard), STDERR_FILENO) >= 0);
    return now;
}

/* Nothing has been printed: a bug of the library is reported, not shown. */
static inline void check_silence(silence before) {
    fflush(NULL);
    CHECK(dup2(before.ends[0], STDOUT_FILENO) >= 0);
    CHECK(dup2(before.ends[1], STDERR_FILENO) >= 0);
    close(before.ends[0]);
    close(before.ends[1]);
    CHECK(lseek(fileno(before.heard), 0, SEEK_END) == 0);
    fclose(before.heard);
}

/* Every call of a poisoned store refuses, and says that it is to be freed. */
static inline void check_poisoned(kv_store *store, kv_ticket ticket) {
    int64_t number = 1;
    kv_tensor tensor = number_tensor(&number);
    kv_key key = 1;
    kv_ticket untouched = UNTOUCHED;
    atomic_int drops = 0;
    size_t size = 0;
    const char *text = NULL;
    int32_t small = 0;
    CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, NULL), KV_ERR_POISONED);
    CHECK(error_says("free"));
    CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, &untouched), KV_ERR_POISONED);
    CHECK_STATUS(kv_pull(store, &key, &tensor, 1, 0, NULL), KV_ERR_POISONED);
    CHECK_STATUS(kv_pushpull(store, &key, &tensor, 1, &key, &tensor, 1, 0, NULL),
                 KV_ERR_POISONED);
    CHECK_STATUS(kv_broadcast(store, &key, &tensor, 1, &key, &tensor, 1, 0, NULL),
                 KV_ERR_POISONED);
    check_collectives(store, KV_ERR_POISONED, NULL);
    CHECK_STATUS(kv_init(store, &key, &tensor, 1), KV_ERR_POISONED);
    CHECK_STATUS(kv_bind(store, &key, &tensor, 1, &key, &tensor, 1, &(kv_bound *){NULL}), KV_ERR_POISONED);
    CHECK_STATUS(kv_remove(store, &key, 1), KV_ERR_POISONED);
    CHECK_STATUS(kv_intern(store, "name", &key), KV_ERR_POISONED);
    CHECK_STATUS(kv_key_name(store, key, &text), KV_ERR_POISONED);
    CHECK_STATUS(kv_key_info(store, key, NULL, NULL, NULL, 0), KV_ERR_POISONED);
    CHECK_STATUS(kv_key_device(store, key, &(kv_device){KV_CPU, 0}), KV_ERR_POISONED);
    CHECK_STATUS(kv_keys(store, NULL, 0, &size), KV_ERR_POISONED);
    CHECK_STATUS(kv_digest(store, &key, &(kv_key_digest){0, 0, 0}, 1), KV_ERR_POISONED);
    CHECK_STATUS(kv_last_round(store, key, &(kv_round){sizeof(kv_round), 0, 0, 0}), KV_ERR_POISONED);
    CHECK_STATUS(kv_set_weight(store, 1), KV_ERR_POISONED);
    CHECK_STATUS(kv_clear_weight(store), KV_ERR_POISONED);
    CHECK_STATUS(kv_set_clipping(store, 1, 0), KV_ERR_POISONED);
    CHECK_STATUS(kv_last_norm(store, &(double){0}, &(uint64_t){0}), KV_ERR_POISONED);
    CHECK_STATUS(kv_begin(store), KV_ERR_POISONED);
    CHECK_STATUS(kv_commit(store, &(int32_t){0}), KV_ERR_POISONED);
    CHECK_STATUS(kv_rollback(store), KV_ERR_POISONED);
    CHECK_STATUS(kv_set_optimizer_for(store, &key, 1, "sgd", NULL), KV_ERR_POISONED);
    CHECK_STATUS(kv_wait(store, ticket, -1), KV_ERR_POISONED);
    CHECK_STATUS(kv_wait_all(store, -1), KV_ERR_POISONED);
    CHECK_STATUS(kv_cancel(store, ticket), KV_ERR_POISONED);
    CHECK_STATUS(kv_set_updater(store, add_number, &drops, count_drop), KV_ERR_POISONED);
    CHECK_STATUS(kv_save(store, "file"), KV_ERR_POISONED);
    CHECK_STATUS(kv_load(store, "file"), KV_ERR_POISONED);
    CHECK_STATUS(kv_load_values(store, "file", same_name, NULL), KV_ERR_POISONED);
    CHECK_STATUS(kv_type(store, &text), KV_ERR_POISONED);
    CHECK_STATUS(kv_role(store, &small), KV_ERR_POISONED);
    CHECK_STATUS(kv_rank(store, &small), KV_ERR_POISONED);
    CHECK_STATUS(kv_num_workers(store, &small), KV_ERR_POISONED);
    CHECK_STATUS(kv_num_lost(store, &small), KV_ERR_POISONED);
    CHECK_STATUS(kv_barrier(store, -1), KV_ERR_POISONED);
    CHECK_STATUS(kv_done(store), KV_ERR_POISONED);
    CHECK_STATUS(kv_resume(store, 0), KV_ERR_POISONED);
    CHECK_STATUS(kv_group(store, "g", &(int32_t){0}, 1, &(kv_store *){NULL}), KV_ERR_POISONED);
    CHECK_STATUS(kv_serve(store), KV_ERR_POISONED);
    CHECK_STATUS(kv_stats(store, NULL, 0, &size), KV_ERR_POISONED);
    CHECK_STATUS(kv_close(store, -1), KV_ERR_POISONED);
    kv_abort(store);
    CHECK(atomic_load(&drops) == 1);
    CHECK(untouched == UNTOUCHED && number == 1 && text == NULL && size == 0);
}

/* Another store of the process is not touched by the bug: with tickets and without. */
static inline void check_another_store_works(void) {
    kv_store *store = open_store("local");
    int64_t number = 5, got = 0;
    init_number(store, 1, 10);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    CHECK_STATUS(push_number(store, 1, 1), KV_OK);
    for (int i = 0; i < 20; i++) {
        send_number(store, 1, &number, 0);
    }
    kv_ticket pull = ask_number(store, 1, &got);
    CHECK_STATUS(kv_wait(store, pull, WAIT_MS), KV_OK);
    CHECK(got == 111);
    CHECK_STATUS(kv_close(store, WAIT_MS), KV_OK);
    kv_free(store);
}

/* A thread that waits for a ticket, or for all of them. */
typedef struct waiter {
    kv_store *store;
    kv_ticket ticket;
    kv_status status;
} waiter;

static inline void *wait_for_one(void *context) {
    waiter *at = context;
    at->status = kv_wait(at->store, at->ticket, WAIT_MS);
    return NULL;
}

static inline void *wait_for_all(void *context) {
    waiter *at = context;
    at->status = kv_wait_all(at->store, WAIT_MS);
    return NULL;
}

#endif /* FAULT_H */
