/* Memory of operations with a ticket, however they end. */
#include "leak.h"

static kv_status refuse_negatives(void *context, kv_key key, const kv_tensor *input,
                                  const kv_tensor *stored) {
    if (*number_of(input) < 0) {
        kv_set_callback_error("a text that is long enough to need memory of its own");
        return KV_ERR_INVALID_ARGUMENT;
    }
    return add_number(context, key, input, stored);
}

/* A store with two keys whose updater fails on negative numbers. */
static kv_store *open_picky_store(void) {
    kv_store *store = open_store("local");
    init_number(store, 1, 0);
    init_number(store, 2, 0);
    CHECK_STATUS(kv_set_updater(store, refuse_negatives, malloc(24), free), KV_OK);
    return store;
}

static kv_store *lasting;

static void waited_for(void) {
    int64_t good = 1, bad = -1, got = 0;
    kv_ticket first = send_number(lasting, 1, &good, 0);
    kv_ticket second = send_number(lasting, 2, &bad, 0);
    kv_ticket third = ask_number(lasting, 1, &got);
    CHECK_STATUS(kv_wait(lasting, third, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_wait(lasting, first, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_wait(lasting, second, WAIT_MS), KV_ERR_CALLBACK);
}

/* Nobody waits for the ticket itself: wait_all is told, then it is forgotten. */
static void never_waited_for(void) {
    int64_t good = 1, bad = -1;
    for (int i = 0; i < 3; i++) {
        send_number(lasting, 1, &good, i);
        send_number(lasting, 2, &bad, i);
    }
    CHECK_STATUS(kv_wait_all(lasting, WAIT_MS), KV_ERR_CALLBACK);
}

static void cancelled(void) {
    int64_t good = 1, got = 0;
    kv_ticket tickets[4];
    for (int i = 0; i < 4; i++) {
        tickets[i] = i % 2 ? ask_number(lasting, 1, &got) : send_number(lasting, 1, &good, i);
    }
    for (int i = 3; i >= 0; i--) {
        CHECK_STATUS(kv_cancel(lasting, tickets[i]), KV_OK);
        kv_status status = kv_wait(lasting, tickets[i], 0);
        CHECK(status == KV_OK || status == KV_ERR_CANCELLED);
    }
}

static void pending_at_the_end(void (*end)(kv_store *store)) {
    int64_t good = 1, bad = -1, got = 0;
    kv_store *store = open_picky_store();
    for (int i = 0; i < 3; i++) {
        send_number(store, 1, &good, i);
        send_number(store, 2, &bad, i);
        ask_number(store, 1, &got);
    }
    end(store);
    kv_free(store);
}

static void end_without_a_word(kv_store *store) {
    (void)store;
}

static void end_with_close(kv_store *store) {
    CHECK_STATUS(kv_close(store, WAIT_MS), KV_ERR_CALLBACK);
}

static void freed(void) {
    pending_at_the_end(end_without_a_word);
}

static void aborted(void) {
    pending_at_the_end(kv_abort);
}

static void closed(void) {
    pending_at_the_end(end_with_close);
}

int main(void) {
    alarm_after_minutes(10);
    long rounds = scaled(4000, 40);
    lasting = open_picky_store();
    check_no_growth(waited_for, rounds);
    check_no_growth(never_waited_for, rounds);
    check_no_growth(cancelled, rounds);
    check_no_growth(freed, rounds);
    check_no_growth(aborted, rounds);
    check_no_growth(closed, rounds);
    kv_free(lasting);
    return check_passed("leak_tickets");
}
