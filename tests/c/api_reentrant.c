/* Calls from inside an updater: few work on its own store, all work on another one. */
#include "collectives.h"

typedef struct inside {
    kv_store *store, *other;
    kv_key name;
    kv_ticket ticket;
    kv_bound *bound;
    int calls;
} inside;

static void check_calls_that_work(inside *own, kv_key key) {
    const char *text = NULL;
    int32_t number = -1;
    kv_dtype dtype = 0;
    CHECK_STATUS(kv_key_name(own->store, own->name, &text), KV_OK);
    CHECK(strcmp(text, "weight") == 0);
    CHECK_STATUS(kv_key_info(own->store, key, &dtype, &number, NULL, 0), KV_OK);
    CHECK(dtype == KV_I64 && number == 0);
    CHECK_STATUS(kv_type(own->store, &text), KV_OK);
    CHECK_STATUS(kv_role(own->store, &number), KV_OK);
    CHECK_STATUS(kv_rank(own->store, &number), KV_OK);
    CHECK_STATUS(kv_num_workers(own->store, &number), KV_OK);
    CHECK(number == 1);
    CHECK_STATUS(kv_num_lost(own->store, &number), KV_OK);
    CHECK(number == 0);
}

static void never_called(void *context, kv_ticket ticket, kv_status status) {
    (void)context, (void)ticket, (void)status;
    CHECK(0);
}

static void check_calls_that_do_not(inside *own, kv_key key) {
    kv_store *store = own->store;
    int64_t number = 1;
    kv_tensor tensor = number_tensor(&number);
    kv_ticket ticket = UNTOUCHED;
    kv_key other = 99;
    size_t length = 0;
    CHECK_STATUS(kv_intern(store, "weight", &other), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_keys(store, NULL, 0, &length), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_digest(store, &key, &(kv_key_digest){0, 0, 0}, 1), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_last_round(store, key, &(kv_round){sizeof(kv_round), 0, 0, 0}), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_set_weight(store, 1), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_clear_weight(store), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_set_clipping(store, 1, 0), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_last_norm(store, &(double){0}, &(uint64_t){0}), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_begin(store), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_commit(store, &(int32_t){0}), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_rollback(store), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_set_optimizer_for(store, &key, 1, "sgd", NULL), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_key_device(store, key, &(kv_device){KV_CPU, 0}), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_init(store, &other, &tensor, 1), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, NULL), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, &ticket), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_pull(store, &key, &tensor, 1, 0, NULL), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_pull(store, &key, &tensor, 1, 0, &ticket), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_pushpull(store, &key, &tensor, 1, &key, &tensor, 1, 0, NULL),
                 KV_ERR_REENTRANT);
    CHECK_STATUS(kv_broadcast(store, &other, &tensor, 1, &key, &tensor, 1, 0, NULL),
                 KV_ERR_REENTRANT);
    CHECK_STATUS(kv_bind(store, &key, &tensor, 1, &key, &tensor, 1, &(kv_bound *){NULL}), KV_ERR_REENTRANT);
    check_collectives(store, KV_ERR_REENTRANT, NULL);
    check_collectives(store, KV_ERR_REENTRANT, &ticket);
    CHECK_STATUS(kv_bound_push(own->bound, 0, NULL), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_bound_pull(own->bound, 0, NULL), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_bound_pushpull(own->bound, 0, &ticket), KV_ERR_REENTRANT);
    kv_bound_free(own->bound);
    CHECK(error_says("updater"));
    CHECK_STATUS(kv_remove(store, &key, 1), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_wait(store, own->ticket, 0), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_wait_all(store, 0), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_cancel(store, own->ticket), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_watch(store, own->ticket), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_next_done(store, &ticket, &(kv_status){KV_OK}), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_event_fd(store, &(int32_t){0}), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_set_compression(store, "2bit", NULL), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_set_updater(store, NULL, NULL, NULL), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_save(store, "file"), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_load(store, "file"), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_load_values(store, "file", same_name, NULL), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_barrier(store, 0), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_done(store), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_resume(store, 0), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_group(store, "g", &(int32_t){0}, 1, &(kv_store *){NULL}), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_serve(store), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_stats(store, NULL, 0, &length), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_close(store, 0), KV_ERR_REENTRANT);
    CHECK(error_says("updater"));
    CHECK(ticket == UNTOUCHED && number == 1);
}

static kv_status call_everything(void *context, kv_key key, const kv_tensor *input,
                                 const kv_tensor *stored) {
    inside *own = context;
    atomic_int drops = 0;
    own->calls++;
    check_calls_that_work(own, key);
    check_calls_that_do_not(own, key);
    CHECK_STATUS(kv_set_updater(own->store, add_number, &drops, count_drop), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_on_done(own->store, own->ticket, never_called, &drops, count_drop),
                 KV_ERR_REENTRANT);
    CHECK(atomic_load(&drops) == 2);
    CHECK_STATUS(push_number(own->other, 1, 3), KV_OK);
    CHECK(pull_number(own->other, 1) == 3 * own->calls);
    return add_number(NULL, key, input, stored);
}

static void own_store_refuses_and_another_works(const char *type) {
    inside own = {.store = open_store(type), .other = open_store(type)};
    int64_t number = 5;
    init_number(own.store, 1, 0);
    init_number(own.other, 1, 0);
    kv_key key = 1;
    kv_tensor tensor = number_tensor(&number);
    CHECK_STATUS(kv_bind(own.store, &key, &tensor, 1, &key, &tensor, 1, &own.bound), KV_OK);
    CHECK_STATUS(kv_intern(own.store, "weight", &own.name), KV_OK);
    CHECK_STATUS(kv_set_updater(own.other, add_number, NULL, NULL), KV_OK);
    CHECK_STATUS(kv_set_updater(own.store, call_everything, &own, NULL), KV_OK);
    CHECK_STATUS(push_number(own.store, 1, 5), KV_OK);
    kv_ticket ticket = send_number(own.store, 1, &number, 0);
    CHECK_STATUS(kv_wait(own.store, ticket, WAIT_MS), KV_OK);
    CHECK(own.calls == 2);
    CHECK(pull_number(own.store, 1) == 10);
    kv_bound_free(own.bound);
    kv_free(own.store);
    kv_free(own.other);
}

/* The updater of one store pushes to another, whose updater calls back the first. */
static kv_status push_on(void *context, kv_key key, const kv_tensor *input,
                         const kv_tensor *stored) {
    inside *own = context;
    CHECK_STATUS(push_number(own->other, key, *number_of(input)), KV_OK);
    return add_number(NULL, key, input, stored);
}

static kv_status push_back(void *context, kv_key key, const kv_tensor *input,
                           const kv_tensor *stored) {
    inside *own = context;
    CHECK_STATUS(push_number(own->store, key, 1), KV_ERR_REENTRANT);
    CHECK_STATUS(push_number(own->other, key, 1), KV_ERR_REENTRANT);
    return add_number(NULL, key, input, stored);
}

static void chains_of_stores_are_seen_through(const char *type) {
    inside own = {.store = open_store(type), .other = open_store(type)};
    init_number(own.store, 1, 0);
    init_number(own.other, 1, 0);
    CHECK_STATUS(kv_set_updater(own.store, push_on, &own, NULL), KV_OK);
    CHECK_STATUS(kv_set_updater(own.other, push_back, &own, NULL), KV_OK);
    CHECK_STATUS(push_number(own.store, 1, 5), KV_OK);
    CHECK(pull_number(own.store, 1) == 5);
    CHECK(pull_number(own.other, 1) == 5);
    kv_free(own.store);
    kv_free(own.other);
}

/* Another thread is not inside, though an updater is at work. */
static void other_threads_are_not_inside(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    int64_t number = 5;
    int32_t ndim = -1;
    size_t count = 0;
    init_number(store, 1, 0);
    init_number(store, 2, 20);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    gate_await(&at, 1);
    CHECK(pull_number(store, 2) == 20);
    CHECK_STATUS(kv_key_info(store, 1, NULL, &ndim, NULL, 0), KV_OK);
    CHECK_STATUS(kv_keys(store, NULL, 0, &count), KV_OK);
    CHECK(count == 2);
    init_number(store, 3, 30);
    gate_open(&at);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(5);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        own_store_refuses_and_another_works(STORE_TYPES[i]);
        chains_of_stores_are_seen_through(STORE_TYPES[i]);
        other_threads_are_not_inside(STORE_TYPES[i]);
    }
    return check_passed("api_reentrant");
}
