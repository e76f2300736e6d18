/* An operation that is withdrawn before it begins (timed out, or cancelled) is out of every queue. */
#include "json.h"
#include "support.h"

/* A store in which a push of key 2 stands still in its updater. Its own calls wait 100 ms. */
typedef struct busy {
    kv_store *store;
    gate at;
    int64_t number;
    kv_ticket push;
} busy;

static void begin(busy *job) {
    job->store = open_with("timeout_ms", "100");
    job->at = (gate)GATE_CLOSED;
    job->number = 20;
    init_number(job->store, 1, 1);
    init_number(job->store, 2, 2);
    init_number(job->store, 3, 3);
    CHECK_STATUS(kv_set_updater(job->store, add_behind_gate, &job->at, NULL), KV_OK);
    job->push = send_number(job->store, 2, &job->number, 0);
    gate_await(&job->at, 1);
}

static void end(busy *job) {
    gate_open(&job->at);
    CHECK_STATUS(kv_wait(job->store, job->push, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_wait_all(job->store, WAIT_MS), KV_OK);
    kv_free(job->store);
}

static kv_status push_both(kv_store *store, kv_key first, kv_key second, kv_ticket *ticket) {
    static int64_t ones[] = {100, 100};
    kv_key keys[] = {first, second};
    kv_tensor values[] = {number_tensor(&ones[0]), number_tensor(&ones[1])};
    return kv_push(store, keys, values, 2, 0, ticket);
}

static double pending(kv_store *store) {
    char text[4096];
    CHECK_STATUS(kv_stats(store, text, sizeof text, NULL), KV_OK);
    return json_number(text, "pending");
}

/* Key 2 is at work; a push of keys 1 and 2 has timed out: a pull of key 1 waits for neither. */
static void a_push_that_timed_out_keeps_no_other_key_waiting(void) {
    busy job;
    begin(&job);
    CHECK_STATUS(push_both(job.store, 1, 2, NULL), KV_ERR_TIMEOUT);
    CHECK(error_says("nothing has been applied"));
    CHECK(error_says("push of key 2"));
    CHECK(pull_number(job.store, 1) == 1);
    /* Nor does one that came behind it on key 1, and so on. */
    CHECK_STATUS(push_both(job.store, 1, 2, NULL), KV_ERR_TIMEOUT);
    CHECK_STATUS(push_both(job.store, 3, 2, NULL), KV_ERR_TIMEOUT);
    CHECK(pull_number(job.store, 1) == 1);
    CHECK(pull_number(job.store, 3) == 3);
    CHECK(pending(job.store) == 1);
    end(&job);
}

static void a_removal_does_not_wait_for_a_push_that_timed_out(void) {
    busy job;
    kv_key key = 1;
    begin(&job);
    CHECK_STATUS(push_both(job.store, 1, 2, NULL), KV_ERR_TIMEOUT);
    CHECK_STATUS(kv_remove(job.store, &key, 1), KV_OK);
    end(&job);
}

static void a_removal_that_timed_out_keeps_no_other_key_waiting(void) {
    busy job;
    kv_key keys[] = {1, 2};
    begin(&job);
    CHECK_STATUS(kv_remove(job.store, keys, 2), KV_ERR_TIMEOUT);
    CHECK(pull_number(job.store, 1) == 1);
    end(&job);
}

static void a_cancelled_push_keeps_no_other_key_waiting(void) {
    busy job;
    kv_ticket both = 0, pull;
    int64_t got = 0;
    begin(&job);
    CHECK_STATUS(push_both(job.store, 1, 2, &both), KV_OK);
    pull = ask_number(job.store, 1, &got);
    CHECK_STATUS(kv_wait(job.store, pull, 30), KV_ERR_TIMEOUT);
    CHECK(pending(job.store) == 3);
    CHECK_STATUS(kv_cancel(job.store, both), KV_OK);
    /* It was queued before the cancel, and goes on at once. */
    CHECK_STATUS(kv_wait(job.store, pull, WAIT_MS), KV_OK);
    CHECK(got == 1);
    CHECK(pending(job.store) == 1);
    CHECK(pull_number(job.store, 1) == 1);
    end(&job);
}

typedef struct caller {
    kv_store *store;
    kv_status status;
    atomic_int returned;
} caller;

static void *push_in_vain(void *context) {
    caller *at = context;
    at->status = push_both(at->store, 1, 2, NULL);
    atomic_store(&at->returned, 1);
    return NULL;
}

/* A pull that was queued behind a call that then times out runs when that one leaves. */
static void what_is_queued_behind_a_call_runs_when_it_times_out(void) {
    busy job;
    pthread_t thread;
    int64_t got = 0;
    begin(&job);
    caller other = {.store = job.store};
    CHECK(pthread_create(&thread, NULL, push_in_vain, &other) == 0);
    while (pending(job.store) < 2 && !atomic_load(&other.returned)) {
        sleep_ms(1);
    }
    kv_ticket pull = ask_number(job.store, 1, &got);
    CHECK_STATUS(kv_wait(job.store, pull, WAIT_MS), KV_OK);
    CHECK(got == 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(other.status == KV_ERR_TIMEOUT);
    end(&job);
}

/* What came after a withdrawn operation still waits for what was before it on its own keys. */
static void nothing_overtakes(void) {
    busy job;
    kv_ticket both = 0, pull;
    int64_t got = 0;
    begin(&job);
    CHECK_STATUS(push_both(job.store, 1, 2, &both), KV_OK);
    pull = ask_number(job.store, 2, &got);
    CHECK_STATUS(kv_cancel(job.store, both), KV_OK);
    CHECK_STATUS(push_both(job.store, 1, 2, NULL), KV_ERR_TIMEOUT);
    CHECK_STATUS(kv_wait(job.store, pull, 30), KV_ERR_TIMEOUT);
    gate_open(&job.at);
    CHECK_STATUS(kv_wait(job.store, pull, WAIT_MS), KV_OK);
    CHECK(got == 22);
    end(&job);
}

int main(void) {
    alarm_after_minutes(2);
    a_push_that_timed_out_keeps_no_other_key_waiting();
    a_removal_does_not_wait_for_a_push_that_timed_out();
    a_removal_that_timed_out_keeps_no_other_key_waiting();
    a_cancelled_push_keeps_no_other_key_waiting();
    what_is_queued_behind_a_call_runs_when_it_times_out();
    nothing_overtakes();
    return check_passed("api_withdrawn");
}
