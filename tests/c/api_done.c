/* Ends of operations: functions that are called, a descriptor to poll; no thread waits for a ticket. */
#include "support.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>

/* What the calls of one function have told; a gate counts its drops. */
typedef struct ends {
    gate dropped;
    kv_store *store;
    pthread_t thread;
    kv_ticket ticket;
    kv_status status;
    atomic_int calls;
    char text[200];
} ends;

#define NO_ENDS {.dropped = GATE_CLOSED, .status = KV_ERR_INTERNAL}

static void note_end(void *context, kv_ticket ticket, kv_status status) {
    ends *told = context;
    border_of_library();
    told->thread = pthread_self();
    told->ticket = ticket;
    told->status = status;
    snprintf(told->text, sizeof told->text, "%s", kv_last_error());
    atomic_fetch_add(&told->calls, 1);
    border_of_library();
}

/* Counts a drop, which comes after the call. */
static void note_drop(void *context) {
    ends *told = context;
    border_of_library();
    pthread_mutex_lock(&told->dropped.lock);
    told->dropped.arrived++;
    pthread_cond_broadcast(&told->dropped.changed);
    pthread_mutex_unlock(&told->dropped.lock);
}

static void check_end(ends *told, kv_ticket ticket, kv_status status, const char *text) {
    gate_await(&told->dropped, 1);
    border_of_library();
    CHECK(atomic_load(&told->calls) == 1 && told->dropped.arrived == 1);
    CHECK(told->ticket == ticket);
    CHECK(told->status == status);
    CHECK(strstr(told->text, text) != NULL);
}

static kv_status fail_behind_gate(void *context, kv_key key, const kv_tensor *input,
                                  const kv_tensor *stored) {
    (void)key, (void)input, (void)stored;
    border_of_library();
    gate_pass(context);
    kv_set_callback_error("not today");
    return KV_ERR_IO;
}

/* A store whose pushes to key 1 stand behind a gate, with one such push. */
static kv_ticket begin(const char *type, gate *at, kv_updater updater, int64_t *number,
                       kv_store **store) {
    *store = open_store(type);
    init_number(*store, 1, 0);
    CHECK_STATUS(kv_set_updater(*store, updater, at, NULL), KV_OK);
    kv_ticket ticket = send_number(*store, 1, number, 0);
    gate_await(at, 1);
    return ticket;
}

static void an_end_is_told_once_with_its_status(const char *type, kv_updater updater,
                                                kv_status status, const char *text) {
    gate at = GATE_CLOSED;
    ends first = NO_ENDS, second = NO_ENDS, late = NO_ENDS;
    int64_t number = 5;
    kv_store *store;
    kv_ticket ticket = begin(type, &at, updater, &number, &store);
    CHECK_STATUS(kv_on_done(store, ticket, note_end, &first, note_drop), KV_OK);
    CHECK_STATUS(kv_on_done(store, ticket, note_end, &second, note_drop), KV_OK);
    CHECK(atomic_load(&first.calls) == 0);
    gate_open(&at);
    check_end(&first, ticket, status, text);
    check_end(&second, ticket, status, text);
    CHECK(!pthread_equal(first.thread, pthread_self()));
    /* It has ended: the calling thread calls. */
    CHECK_STATUS(kv_on_done(store, ticket, note_end, &late, note_drop), KV_OK);
    check_end(&late, ticket, status, text);
    CHECK(pthread_equal(late.thread, pthread_self()));
    /* The failure counts as told. */
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_wait(store, ticket, 0), status);
    kv_free(store);
}

static void a_cancel_is_told(const char *type) {
    gate at = GATE_CLOSED;
    ends running = NO_ENDS, waiting = NO_ENDS;
    int64_t number = 5, other = 6;
    kv_store *store;
    kv_ticket first = begin(type, &at, add_behind_gate, &number, &store);
    kv_ticket second = send_number(store, 1, &other, 0);
    CHECK_STATUS(kv_on_done(store, first, note_end, &running, note_drop), KV_OK);
    CHECK_STATUS(kv_on_done(store, second, note_end, &waiting, note_drop), KV_OK);
    CHECK_STATUS(kv_cancel(store, second), KV_OK);
    check_end(&waiting, second, KV_ERR_CANCELLED, "nothing has changed");
    gate_open(&at);
    check_end(&running, first, KV_OK, "");
    CHECK(pull_number(store, 1) == 5);
    kv_free(store);
}


/* Lets the operation at work go on while the store is freed. */
static void *open_soon(void *context) {
    sleep_ms(20);
    gate_open(context);
    return NULL;
}

static void abort_and_free_tell_of_every_operation(const char *type, int aborts) {
    gate at = GATE_CLOSED;
    ends running = NO_ENDS, waiting = NO_ENDS;
    int64_t number = 5, other = 6;
    pthread_t opener;
    kv_store *store;
    kv_ticket first = begin(type, &at, add_behind_gate, &number, &store);
    kv_ticket second = send_number(store, 1, &other, 0);
    CHECK_STATUS(kv_on_done(store, first, note_end, &running, note_drop), KV_OK);
    CHECK_STATUS(kv_on_done(store, second, note_end, &waiting, note_drop), KV_OK);
    if (aborts) {
        kv_abort(store);
        check_end(&waiting, second, KV_ERR_CLOSED, "aborted");
        CHECK(atomic_load(&running.calls) == 0);
    }
    CHECK(pthread_create(&opener, NULL, open_soon, &at) == 0);
    kv_free(store);
    /* Both have been called and dropped when kv_free() returns. */
    CHECK(running.dropped.arrived == 1 && waiting.dropped.arrived == 1);
    check_end(&running, first, KV_OK, "");
    check_end(&waiting, second, KV_ERR_CLOSED, "aborted");
    pthread_join(opener, NULL);
}

static void *close_store(void *store) {
    CHECK_STATUS(kv_close(store, WAIT_MS), KV_OK);
    return NULL;
}

static void wait_at_gate(void *context, kv_ticket ticket, kv_status status) {
    (void)ticket, (void)status;
    gate_pass(context);
}

static void a_close_waits_for_the_functions(const char *type) {
    gate at = GATE_CLOSED, inside = GATE_CLOSED;
    int64_t number = 5;
    pthread_t closer;
    kv_store *store;
    kv_ticket ticket = begin(type, &at, add_behind_gate, &number, &store);
    CHECK_STATUS(kv_on_done(store, ticket, wait_at_gate, &inside, NULL), KV_OK);
    gate_open(&at);
    gate_await(&inside, 1);
    CHECK_STATUS(kv_close(store, 20), KV_ERR_TIMEOUT);
    CHECK(error_says("on_done"));
    CHECK(pthread_create(&closer, NULL, close_store, store) == 0);
    gate_open(&inside);
    pthread_join(closer, NULL);
    kv_free(store);
}

static void a_call_that_fails_only_drops(const char *type) {
    kv_store *store = open_store(type);
    ends told = NO_ENDS;
    int64_t number = 1;
    init_number(store, 1, 0);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    CHECK_STATUS(kv_on_done(store, ticket + 1, note_end, &told, note_drop), KV_ERR_TICKET);
    CHECK_STATUS(kv_on_done(store, 0, note_end, &told, note_drop), KV_ERR_TICKET);
    CHECK_STATUS(kv_on_done(NULL, ticket, note_end, &told, note_drop), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_on_done(store, ticket, NULL, &told, note_drop), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_watch(store, ticket + 1), KV_ERR_TICKET);
    CHECK(told.dropped.arrived == 4 && atomic_load(&told.calls) == 0);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    kv_free(store);
}

static kv_status add_unless_negative(void *context, kv_key key, const kv_tensor *input,
                                     const kv_tensor *stored) {
    return *number_of(input) < 0 ? KV_ERR_IO : add_number(context, key, input, stored);
}

/* What a function may do with its own store: queue, and look; not wait. */
typedef struct chain {
    kv_store *store;
    gate ended;
    int64_t number;
    int left;
} chain;

static void next_of_chain(void *context, kv_ticket ticket, kv_status status);

static void go_on(chain *links) {
    kv_ticket next = send_number(links->store, 1, &links->number, 0);
    CHECK_STATUS(kv_on_done(links->store, next, next_of_chain, links, NULL), KV_OK);
}

static void next_of_chain(void *context, kv_ticket ticket, kv_status status) {
    chain *links = context;
    border_of_library();
    CHECK(status == KV_OK);
    CHECK_STATUS(kv_wait(links->store, ticket, WAIT_MS), KV_OK);
    if (--links->left > 0) {
        go_on(links);
    } else {
        gate_pass(&links->ended);
    }
}

static void a_function_queues_the_next_operation(const char *type) {
    chain links = {.store = open_store(type), .ended = GATE_CLOSED, .number = 1};
    links.ended.open = 1;
    links.left = (int)scaled(20000, 500);
    init_number(links.store, 1, 0);
    CHECK_STATUS(kv_set_updater(links.store, add_number, NULL, NULL), KV_OK);
    int count = links.left;
    go_on(&links);
    gate_await(&links.ended, 1);
    CHECK(pull_number(links.store, 1) == count);
    kv_free(links.store);
}

typedef struct inside {
    kv_store *store;
    kv_ticket blocked;
    gate passed;
} inside;

static void call_everything(void *context, kv_ticket ticket, kv_status status) {
    inside *own = context;
    kv_store *store = own->store;
    int64_t number = 1;
    kv_tensor tensor = number_tensor(&number);
    kv_key key = 2, name = 0;
    kv_ticket none = 0;
    size_t count = 0;
    int32_t rank = -1;
    CHECK(status == KV_OK);
    CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, NULL), KV_ERR_REENTRANT);
    CHECK(error_says("on_done"));
    CHECK_STATUS(kv_init(store, &key, &tensor, 1), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_pull(store, &key, &tensor, 1, 0, NULL), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_broadcast(store, &key, &tensor, 1, &key, &tensor, 1, 0, &none),
                 KV_ERR_REENTRANT);
    CHECK_STATUS(kv_remove(store, &key, 1), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_wait(store, own->blocked, -1), KV_ERR_REENTRANT);
    CHECK(error_says("on_done"));
    CHECK_STATUS(kv_wait(store, own->blocked, 0), KV_ERR_TIMEOUT);
    CHECK_STATUS(kv_wait(store, ticket, -1), KV_OK);
    CHECK_STATUS(kv_wait_all(store, 0), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_cancel(store, own->blocked), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_close(store, -1), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_barrier(store, 0), KV_ERR_REENTRANT);
    kv_free(store);
    CHECK(error_says("kept"));
    CHECK_STATUS(kv_rank(store, &rank), KV_OK);
    CHECK_STATUS(kv_keys(store, NULL, 0, &count), KV_OK);
    CHECK_STATUS(kv_intern(store, "weight", &name), KV_OK);
    CHECK_STATUS(kv_watch(store, ticket), KV_OK);
    CHECK_STATUS(kv_next_done(store, &none, &status), KV_OK);
    CHECK(none == ticket);
    gate_pass(&own->passed);
}

static void a_function_that_would_wait_is_refused(const char *type) {
    gate at = GATE_CLOSED;
    inside own = {.passed = GATE_CLOSED};
    int64_t number = 5, out = 0;
    own.blocked = begin(type, &at, add_behind_gate, &number, &own.store);
    own.passed.open = 1;
    init_number(own.store, 2, 20);
    kv_ticket ticket = ask_number(own.store, 2, &out);
    CHECK_STATUS(kv_on_done(own.store, ticket, call_everything, &own, NULL), KV_OK);
    gate_await(&own.passed, 1);
    /* On the calling thread too. */
    CHECK_STATUS(kv_on_done(own.store, ticket, call_everything, &own, NULL), KV_OK);
    CHECK(own.passed.arrived == 2);
    gate_open(&at);
    CHECK_STATUS(kv_wait(own.store, own.blocked, WAIT_MS), KV_OK);
    kv_free(own.store);
}

static int is_readable(int fd, int timeout_ms) {
    struct pollfd asked = {.fd = fd, .events = POLLIN};
    return poll(&asked, 1, timeout_ms) == 1 && asked.revents == POLLIN;
}

static void the_descriptor_is_readable_while_there_is_an_end(const char *type) {
    gate at = GATE_CLOSED;
    int64_t number = 5, bad = -1;
    int32_t fd = -1, again = -1;
    kv_status status = KV_ERR_IO;
    kv_ticket got = UNTOUCHED;
    kv_store *store;
    kv_ticket first = begin(type, &at, add_behind_gate, &number, &store);
    CHECK_STATUS(kv_event_fd(store, &fd), KV_OK);
    CHECK(fd >= 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK_STATUS(kv_set_updater(store, add_unless_negative, NULL, NULL), KV_OK);
    kv_ticket second = send_number(store, 1, &bad, 0);
    CHECK_STATUS(kv_watch(store, second), KV_OK);
    CHECK_STATUS(kv_watch(store, first), KV_OK);
    CHECK(!is_readable(fd, 0));
    CHECK_STATUS(kv_next_done(store, &got, &status), KV_OK);
    CHECK(got == 0 && status == KV_OK);
    gate_open(&at);
    CHECK(is_readable(fd, WAIT_MS));
    CHECK_STATUS(kv_next_done(store, &got, &status), KV_OK);
    CHECK(got == first && status == KV_OK);
    CHECK(is_readable(fd, WAIT_MS));
    CHECK_STATUS(kv_next_done(store, &got, &status), KV_OK);
    CHECK(got == second && status == KV_ERR_CALLBACK);
    CHECK(error_says("key 1"));
    CHECK(!is_readable(fd, 0));
    /* The failure counts as told; the end of an operation that has ended is there at once. */
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_watch(store, first), KV_OK);
    CHECK(is_readable(fd, 0));
    CHECK_STATUS(kv_event_fd(store, &again), KV_OK);
    CHECK(again == fd);
    CHECK_STATUS(kv_next_done(store, &got, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_close(store, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_next_done(store, &got, &status), KV_OK);
    CHECK(got == first && status == KV_OK);
    kv_free(store);
    CHECK(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
}

static int threads_of_process(void) {
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    if (tasks == NULL) {
        return 0;
    }
    for (struct dirent *each = readdir(tasks); each != NULL; each = readdir(tasks)) {
        count += each->d_name[0] != '.';
    }
    closedir(tasks);
    return count;
}

static void count_end(void *context, kv_ticket ticket, kv_status status) {
    (void)ticket;
    border_of_library();
    CHECK(status == KV_OK);
    count_drop(context);
}

/* Ten thousand operations in flight, each with a function and a place in the list. */
static void operations_in_flight_take_one_thread(const char *type) {
    enum { MOST = 10000 };
    static int64_t numbers[MOST];
    const int count = (int)scaled(MOST, 500);
    gate at = GATE_CLOSED;
    atomic_int calls = 0;
    int64_t number = 0;
    int taken = 0;
    int32_t fd = -1;
    kv_store *store;
    begin(type, &at, add_behind_gate, &number, &store);
    const int before = threads_of_process();
    CHECK_STATUS(kv_event_fd(store, &fd), KV_OK);
    for (int i = 0; i < count; i++) {
        numbers[i] = 1;
        kv_ticket ticket = send_number(store, 1, &numbers[i], 0);
        CHECK_STATUS(kv_on_done(store, ticket, count_end, &calls, NULL), KV_OK);
        CHECK_STATUS(kv_watch(store, ticket), KV_OK);
    }
    CHECK(threads_of_process() <= before + 1);
    CHECK(atomic_load(&calls) == 0);
    gate_open(&at);
    while (taken < count) {
        kv_status status = KV_ERR_IO;
        kv_ticket ticket = UNTOUCHED;
        CHECK(is_readable(fd, WAIT_MS));
        CHECK_STATUS(kv_next_done(store, &ticket, &status), KV_OK);
        CHECK(ticket != 0 && status == KV_OK);
        taken++;
    }
    CHECK_STATUS(kv_close(store, WAIT_MS), KV_OK);
    CHECK(atomic_load(&calls) == count);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(5);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        const char *type = STORE_TYPES[i];
        an_end_is_told_once_with_its_status(type, add_behind_gate, KV_OK, "");
        an_end_is_told_once_with_its_status(type, fail_behind_gate, KV_ERR_CALLBACK, "not today");
        a_cancel_is_told(type);
        abort_and_free_tell_of_every_operation(type, 0);
        abort_and_free_tell_of_every_operation(type, 1);
        a_close_waits_for_the_functions(type);
        a_call_that_fails_only_drops(type);
        a_function_queues_the_next_operation(type);
        a_function_that_would_wait_is_refused(type);
        the_descriptor_is_readable_while_there_is_an_end(type);
        operations_in_flight_take_one_thread(type);
    }
    return check_passed("api_done");
}
