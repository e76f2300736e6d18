/* A bug of the library on its own thread, inside an operation with a ticket. */
#include "fault.h"

/* Calls without a ticket work until the first operation with one meets the bug. */
static void the_ticket_reports_a_bug_and_poisons_the_store(void) {
    kv_store *store = open_with("fault", "task");
    int64_t number = 1;
    init_number(store, 1, 10);
    CHECK_STATUS(push_number(store, 1, 5), KV_OK);
    CHECK(pull_number(store, 1) == 5);
    silence before = hush();
    kv_ticket ticket = send_number(store, 1, &number, 0);
    kv_status status = kv_wait(store, ticket, WAIT_MS);
    check_silence(before);
    /* The first to hear of it hears what it was, unless the store was poisoned before it asked. */
    CHECK(status == KV_ERR_INTERNAL || status == KV_ERR_POISONED);
    check_poisoned(store, ticket);
    check_another_store_works();
    kv_free(store);
}

/* Whatever is queued behind the bug wakes up, from every kind of wait. */
static void all_waiters_wake_up(void) {
    enum { COUNT = 50 };
    kv_store *store = open_with("fault", "task");
    static int64_t numbers[COUNT];
    kv_ticket last = 0;
    pthread_t threads[2];
    init_number(store, 1, 10);
    for (int i = 0; i < COUNT; i++) {
        kv_tensor value = number_tensor(&numbers[i]);
        kv_key key = 1;
        kv_ticket ticket = 0;
        kv_status status = kv_push(store, &key, &value, 1, 0, &ticket);
        CHECK(status == KV_OK || status == KV_ERR_POISONED);
        last = status == KV_OK ? ticket : last;
    }
    CHECK(last != 0);
    waiter one = {store, last, KV_OK}, all = {store, 0, KV_OK};
    CHECK(pthread_create(&threads[0], NULL, wait_for_one, &one) == 0);
    CHECK(pthread_create(&threads[1], NULL, wait_for_all, &all) == 0);
    CHECK(pthread_join(threads[0], NULL) == 0);
    CHECK(pthread_join(threads[1], NULL) == 0);
    CHECK(one.status == KV_ERR_INTERNAL || one.status == KV_ERR_POISONED);
    CHECK(all.status == KV_ERR_INTERNAL || all.status == KV_ERR_POISONED);
    check_poisoned(store, last);
    kv_free(store);
}

/* The library's thread has survived: other stores still run their operations on it. */
static void many_bugs_leave_the_threads_alive(void) {
    for (int i = 0; i < 50; i++) {
        atomic_int drops = 0;
        int64_t number = 1;
        kv_store *store = open_with("fault", "task");
        init_number(store, 1, 10);
        CHECK_STATUS(kv_set_updater(store, add_number, &drops, count_drop), KV_OK);
        send_number(store, 1, &number, 0);
        kv_free(store);
        CHECK(atomic_load(&drops) == 1);
        check_another_store_works();
    }
}

int main(void) {
    alarm_after_minutes(2);
    the_ticket_reports_a_bug_and_poisons_the_store();
    all_waiters_wake_up();
    many_bugs_leave_the_threads_alive();
    return check_passed("fault_task");
}
