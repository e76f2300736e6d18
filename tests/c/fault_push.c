/* A bug of the library inside a call without a ticket: status, poison, wake-up, and a clean end. */
#include "fault.h"

static void the_call_reports_a_bug_and_poisons_the_store(void) {
    kv_store *store = open_with("fault", "push");
    int64_t number = 1;
    init_number(store, 1, 10);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    silence before = hush();
    kv_status status = push_number(store, 1, 5);
    check_silence(before);
    CHECK_STATUS(status, KV_ERR_INTERNAL);
    CHECK(error_says("injected fault at push"));
    check_poisoned(store, ticket);
    check_another_store_works();
    kv_free(store);
}

/* The bug is met by a call of a bound list, which refuses like all others afterwards. */
static void a_bound_list_reports_a_bug_too(void) {
    kv_store *store = open_with("fault", "push");
    int64_t number = 1;
    kv_key key = 1;
    kv_tensor tensor = number_tensor(&number);
    kv_bound *bound = NULL;
    kv_ticket ticket = UNTOUCHED;
    init_number(store, key, 10);
    CHECK_STATUS(kv_bind(store, &key, &tensor, 1, &key, &tensor, 1, &bound), KV_OK);
    CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_ERR_INTERNAL);
    CHECK(error_says("injected fault at push"));
    CHECK_STATUS(kv_bound_push(bound, 0, NULL), KV_ERR_POISONED);
    CHECK_STATUS(kv_bound_pull(bound, 0, NULL), KV_ERR_POISONED);
    CHECK_STATUS(kv_bound_pushpull(bound, 0, &ticket), KV_ERR_POISONED);
    CHECK(ticket == UNTOUCHED);
    kv_bound_free(bound);
    kv_free(store);
}

/* Those who wait wake up, though an updater still stands at the gate. */
static void all_waiters_wake_up(void) {
    gate at = GATE_CLOSED;
    kv_store *store = open_with("fault", "push");
    int64_t number = 1, got = (int64_t)UNTOUCHED;
    pthread_t threads[2];
    init_number(store, 1, 10);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    kv_ticket working = send_number(store, 1, &number, 0);
    kv_ticket waiting = ask_number(store, 1, &got);
    gate_await(&at, 1);
    waiter one = {store, waiting, KV_OK};
    CHECK(pthread_create(&threads[0], NULL, wait_for_one, &one) == 0);
    sleep_ms(20);
    CHECK_STATUS(push_number(store, 1, 5), KV_ERR_INTERNAL);
    CHECK(pthread_join(threads[0], NULL) == 0);
    CHECK(one.status == KV_ERR_POISONED);
    check_poisoned(store, working);

    waiter all = {store, 0, KV_OK};
    CHECK(pthread_create(&threads[1], NULL, wait_for_all, &all) == 0);
    CHECK(pthread_join(threads[1], NULL) == 0);
    CHECK(all.status == KV_ERR_POISONED);
    gate_open(&at);
    kv_free(store); /* waits for the one at work, whose buffer is on our stack */
    CHECK(got == (int64_t)UNTOUCHED);
}

/* The context of the updater of a poisoned store ends with the store. */
static void contexts_end_with_the_store(void) {
    atomic_int drops = 0;
    kv_store *store = open_with("fault", "push");
    init_number(store, 1, 10);
    CHECK_STATUS(kv_set_updater(store, add_number, &drops, count_drop), KV_OK);
    CHECK_STATUS(push_number(store, 1, 5), KV_ERR_INTERNAL);
    kv_free(store);
    CHECK(atomic_load(&drops) == 1);
}

/* A bug inside an updater's call to another store is that store's bug, not this one's. */
static kv_status push_to_faulty(void *context, kv_key key, const kv_tensor *input,
                                const kv_tensor *stored) {
    CHECK_STATUS(push_number(context, key, 1), KV_ERR_INTERNAL);
    return add_number(NULL, key, input, stored);
}

static void a_bug_below_an_updater_stays_there(void) {
    kv_store *store = open_store("local"), *faulty = open_with("fault", "push");
    init_number(store, 1, 10);
    init_number(faulty, 1, 10);
    CHECK_STATUS(kv_set_updater(store, push_to_faulty, faulty, NULL), KV_OK);
    CHECK_STATUS(push_number(store, 1, 5), KV_OK);
    CHECK(pull_number(store, 1) == 15);
    CHECK_STATUS(push_number(faulty, 1, 5), KV_ERR_POISONED);
    kv_free(faulty);
    kv_free(store);
}

/* A point that nothing passes does nothing. */
static void an_unknown_point_is_never_reached(void) {
    kv_store *store = open_with("fault", "elsewhere");
    init_number(store, 1, 10);
    CHECK_STATUS(push_number(store, 1, 5), KV_OK);
    CHECK(pull_number(store, 1) == 5);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(2);
    the_call_reports_a_bug_and_poisons_the_store();
    a_bound_list_reports_a_bug_too();
    all_waiters_wake_up();
    contexts_end_with_the_store();
    a_bug_below_an_updater_stays_there();
    an_unknown_point_is_never_reached();
    check_another_store_works();
    return check_passed("fault_push");
}
