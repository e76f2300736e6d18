/* fork(): the child cannot use the parent's stores, can make its own, and the parent goes on. */
#include "collectives.h"

#include <sys/types.h>
#include <sys/wait.h>

/* Waits for the child, at most WAIT_MS; it must have ended well. */
static void reap(pid_t child) {
    int status = 0;
    pid_t ended = 0;
    for (int64_t start = now_ms(); ended == 0 && now_ms() - start < WAIT_MS; sleep_ms(2)) {
        ended = waitpid(child, &status, WNOHANG);
    }
    CHECK(ended == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/*
 * Starts a child that runs `work` and ends well; it has its own alarm.
 *
 * It ends as `true`: a memory checker that looks at the end of a process would take for lost what
 * the threads of the parent hold, which are not in the child.
 */
static pid_t start_child(void (*work)(kv_store *store, kv_ticket ticket), kv_store *store,
                         kv_ticket ticket) {
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm_after_minutes(1);
        work(store, ticket);
        execlp("true", "true", (char *)NULL);
        _exit(1);
    }
    return child;
}

static void never_called(void *context, kv_ticket ticket, kv_status status) {
    (void)context, (void)ticket, (void)status;
    CHECK(0);
}

static void check_everything_is_forked(kv_store *store, kv_ticket ticket) {
    int64_t number = 1;
    kv_tensor tensor = number_tensor(&number);
    kv_key key = 1;
    kv_ticket untouched = UNTOUCHED;
    kv_status status = KV_OK;
    const char *text = NULL;
    int32_t small = 0;
    size_t count = 0;
    CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, NULL), KV_ERR_FORKED);
    CHECK(strlen(kv_last_error()) > 0);
    CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, &untouched), KV_ERR_FORKED);
    CHECK_STATUS(kv_pull(store, &key, &tensor, 1, 0, NULL), KV_ERR_FORKED);
    CHECK_STATUS(kv_pushpull(store, &key, &tensor, 1, &key, &tensor, 1, 0, NULL), KV_ERR_FORKED);
    CHECK_STATUS(kv_broadcast(store, &key, &tensor, 1, &key, &tensor, 1, 0, NULL),
                 KV_ERR_FORKED);
    check_collectives(store, KV_ERR_FORKED, NULL);
    check_collectives(store, KV_ERR_FORKED, &untouched);
    CHECK_STATUS(kv_init(store, &key, &tensor, 1), KV_ERR_FORKED);
    CHECK_STATUS(kv_push_rows(store, &key, &tensor, &tensor, 1, 0, NULL), KV_ERR_FORKED);
    CHECK_STATUS(kv_pull_rows(store, &key, &tensor, &tensor, 1, 0, NULL), KV_ERR_FORKED);
    CHECK_STATUS(kv_bind(store, &key, &tensor, 1, &key, &tensor, 1, &(kv_bound *){NULL}), KV_ERR_FORKED);
    CHECK_STATUS(kv_remove(store, &key, 1), KV_ERR_FORKED);
    CHECK_STATUS(kv_intern(store, "name", &key), KV_ERR_FORKED);
    CHECK_STATUS(kv_key_name(store, key, &text), KV_ERR_FORKED);
    CHECK_STATUS(kv_key_info(store, key, NULL, NULL, NULL, 0), KV_ERR_FORKED);
    CHECK_STATUS(kv_key_device(store, key, &(kv_device){KV_CPU, 0}), KV_ERR_FORKED);
    CHECK_STATUS(kv_keys(store, NULL, 0, &count), KV_ERR_FORKED);
    CHECK_STATUS(kv_digest(store, &key, &(kv_key_digest){0, 0, 0}, 1), KV_ERR_FORKED);
    CHECK_STATUS(kv_last_round(store, key, &(kv_round){sizeof(kv_round), 0, 0, 0}), KV_ERR_FORKED);
    CHECK_STATUS(kv_set_weight(store, 1), KV_ERR_FORKED);
    CHECK_STATUS(kv_clear_weight(store), KV_ERR_FORKED);
    CHECK_STATUS(kv_set_clipping(store, 1, 0), KV_ERR_FORKED);
    CHECK_STATUS(kv_last_norm(store, &(double){0}, &(uint64_t){0}), KV_ERR_FORKED);
    CHECK_STATUS(kv_begin(store), KV_ERR_FORKED);
    CHECK_STATUS(kv_commit(store, &(int32_t){0}), KV_ERR_FORKED);
    CHECK_STATUS(kv_rollback(store), KV_ERR_FORKED);
    CHECK_STATUS(kv_set_optimizer_for(store, &key, 1, "sgd", NULL), KV_ERR_FORKED);
    CHECK_STATUS(kv_wait(store, ticket, -1), KV_ERR_FORKED);
    CHECK_STATUS(kv_wait_all(store, -1), KV_ERR_FORKED);
    CHECK_STATUS(kv_cancel(store, ticket), KV_ERR_FORKED);
    atomic_int drops = 0;
    CHECK_STATUS(kv_on_done(store, ticket, never_called, &drops, count_drop), KV_ERR_FORKED);
    CHECK(atomic_load(&drops) == 1);
    CHECK_STATUS(kv_watch(store, ticket), KV_ERR_FORKED);
    CHECK_STATUS(kv_next_done(store, &untouched, &status), KV_ERR_FORKED);
    CHECK_STATUS(kv_event_fd(store, &small), KV_ERR_FORKED);
    CHECK_STATUS(kv_set_updater(store, NULL, NULL, NULL), KV_ERR_FORKED);
    CHECK_STATUS(kv_save(store, "file"), KV_ERR_FORKED);
    CHECK_STATUS(kv_load(store, "file"), KV_ERR_FORKED);
    CHECK_STATUS(kv_load_values(store, "file", same_name, NULL), KV_ERR_FORKED);
    CHECK_STATUS(kv_type(store, &text), KV_ERR_FORKED);
    CHECK_STATUS(kv_role(store, &small), KV_ERR_FORKED);
    CHECK_STATUS(kv_rank(store, &small), KV_ERR_FORKED);
    CHECK_STATUS(kv_num_workers(store, &small), KV_ERR_FORKED);
    CHECK_STATUS(kv_num_lost(store, &small), KV_ERR_FORKED);
    CHECK_STATUS(kv_barrier(store, 0), KV_ERR_FORKED);
    CHECK_STATUS(kv_done(store), KV_ERR_FORKED);
    CHECK_STATUS(kv_resume(store, 0), KV_ERR_FORKED);
    CHECK_STATUS(kv_group(store, "g", &(int32_t){0}, 1, &(kv_store *){NULL}), KV_ERR_FORKED);
    CHECK_STATUS(kv_serve(store), KV_ERR_FORKED);
    CHECK_STATUS(kv_stats(store, NULL, 0, &count), KV_ERR_FORKED);
    CHECK_STATUS(kv_close(store, -1), KV_ERR_FORKED);
    CHECK(untouched == UNTOUCHED);
}

/* A new store works in the child, its tickets and its larger sums too. */
static void pass_gate(void *context, kv_ticket ticket, kv_status status) {
    (void)ticket;
    border_of_library();
    CHECK(status == KV_OK);
    gate_pass(context);
}

static void check_a_new_store_works(void) {
    enum { COUNT = 300000 };
    static float data[2][COUNT], got[COUNT];
    kv_store *store = open_with("threads", "4");
    int64_t shape[] = {COUNT}, number = 5;
    kv_key keys[] = {1, 1};
    kv_tensor values[] = {kv_tensor_cpu(data[0], KV_F32, 1, shape),
                          kv_tensor_cpu(data[1], KV_F32, 1, shape)};
    kv_tensor out = kv_tensor_cpu(got, KV_F32, 1, shape);
    kv_ticket push = 0, pull = 0;
    gate told = GATE_CLOSED;
    told.open = 1;
    for (int i = 0; i < COUNT; i++) {
        data[0][i] = data[1][i] = (float)i;
    }
    CHECK_STATUS(kv_init(store, keys, values, 1), KV_OK);
    CHECK_STATUS(kv_push(store, keys, values, 2, 0, &push), KV_OK);
    CHECK_STATUS(kv_pull(store, keys, &out, 1, 0, &pull), KV_OK);
    CHECK_STATUS(kv_on_done(store, pull, pass_gate, &told, NULL), KV_OK);
    CHECK_STATUS(kv_on_done(store, push, pass_gate, &told, NULL), KV_OK);
    gate_await(&told, 2);
    CHECK_STATUS(kv_wait(store, pull, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_wait(store, push, WAIT_MS), KV_OK);
    int equal = 0;
    for (int i = 0; i < COUNT; i++) {
        equal += got[i] == 2 * (float)i;
    }
    CHECK(equal == COUNT);
    init_number(store, 2, 0);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    for (int i = 0; i < 100; i++) {
        send_number(store, 2, &number, i);
    }
    CHECK(pull_number(store, 2) == 500);
    CHECK_STATUS(kv_close(store, WAIT_MS), KV_OK);
    kv_free(store);
}

static void use_both(kv_store *store, kv_ticket ticket) {
    check_everything_is_forked(store, ticket);
    check_a_new_store_works();
    kv_abort(store);
    kv_free(store);
    check_a_new_store_works();
}

static void the_child_starts_anew_and_the_parent_goes_on(const char *type) {
    kv_store *store = open_store(type);
    int64_t number = 5;
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    pid_t child = start_child(use_both, store, ticket);
    for (int i = 0; i < 100; i++) {
        send_number(store, 1, &number, 0);
        CHECK_STATUS(push_number(store, 1, 1), KV_OK);
    }
    reap(child);
    CHECK(pull_number(store, 1) == 605);
    kv_free(store);
}

static kv_bound *bound_before;

static void use_the_bound_list(kv_store *store, kv_ticket ticket) {
    CHECK_STATUS(kv_bound_push(bound_before, 0, NULL), KV_ERR_FORKED);
    CHECK_STATUS(kv_bound_pull(bound_before, 0, NULL), KV_ERR_FORKED);
    CHECK_STATUS(kv_bound_pushpull(bound_before, 0, &ticket), KV_ERR_FORKED);
    kv_bound_free(bound_before);
    kv_free(store);
}

static void a_bound_list_belongs_to_its_process(const char *type) {
    kv_store *store = open_store(type);
    int64_t number = 5;
    kv_key key = 1;
    kv_tensor tensor = number_tensor(&number);
    init_number(store, key, 0);
    CHECK_STATUS(kv_bind(store, &key, &tensor, 1, &key, &tensor, 1, &bound_before), KV_OK);
    reap(start_child(use_the_bound_list, store, 0));
    CHECK_STATUS(kv_bound_push(bound_before, 0, NULL), KV_OK);
    CHECK(pull_number(store, key) == 5);
    kv_bound_free(bound_before);
    kv_free(store);
}

/* The fork happens while the parent's library is at work and holds whatever it may hold. */
static void a_fork_in_the_middle_of_work(const char *type) {
    kv_store *store = open_store(type);
    gate before = GATE_CLOSED, at = GATE_CLOSED, told = GATE_CLOSED;
    int64_t number = 5, got = 0;
    init_number(store, 1, 0);
    told.open = 1;
    /* The thread for the functions has started before the fork: the allocator of AddressSanitizer does
       not survive a fork during the start of a thread. */
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &before, NULL), KV_OK);
    kv_ticket first = send_number(store, 1, &got, 0);
    CHECK_STATUS(kv_on_done(store, first, pass_gate, &told, NULL), KV_OK);
    gate_open(&before);
    gate_await(&told, 1);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    kv_ticket push = send_number(store, 1, &number, 0);
    kv_ticket pull = ask_number(store, 1, &got);
    /* That thread is not in the child. */
    CHECK_STATUS(kv_on_done(store, push, pass_gate, &told, NULL), KV_OK);
    gate_await(&at, 1);
    pid_t child = start_child(use_both, store, pull);
    reap(child);
    gate_open(&at);
    CHECK_STATUS(kv_wait(store, push, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_wait(store, pull, WAIT_MS), KV_OK);
    CHECK(got == 5);
    kv_free(store);
    CHECK(told.arrived == 2);
}

typedef struct worker {
    kv_store *store;
    atomic_int stop;
} worker;

static void *push_until_stopped(void *context) {
    worker *at = context;
    int64_t number = 1;
    while (!atomic_load(&at->stop)) {
        kv_ticket ticket = send_number(at->store, 1, &number, 0);
        CHECK_STATUS(push_number(at->store, 2, 1), KV_OK);
        CHECK_STATUS(kv_wait(at->store, ticket, WAIT_MS), KV_OK);
    }
    return NULL;
}

/*
 * Many forks beside threads that push without a pause: no lock of theirs may stop a child. Not
 * under AddressSanitizer: its allocator keeps the locks that other threads held at the fork.
 */
static void forks_beside_busy_threads(void) {
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    worker at = {open_store("local"), 0};
    init_number(at.store, 1, 0);
    init_number(at.store, 2, 0);
    CHECK_STATUS(kv_set_updater(at.store, add_number, NULL, NULL), KV_OK);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, push_until_stopped, &at) == 0);
    }
    for (long i = 0; i < scaled(20, 3); i++) {
        reap(start_child(use_both, at.store, 1));
    }
    atomic_store(&at.stop, 1);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(pull_number(at.store, 1) == pull_number(at.store, 2));
    kv_free(at.store);
}

static void fork_again(kv_store *store, kv_ticket ticket) {
    kv_store *own = open_store("local");
    int64_t number = 5;
    init_number(own, 1, 0);
    kv_ticket pushed = send_number(own, 1, &number, 0);
    CHECK_STATUS(kv_wait(own, pushed, WAIT_MS), KV_OK);
    reap(start_child(use_both, own, pushed));
    CHECK(pull_number(own, 1) == 5);
    check_everything_is_forked(store, ticket);
    kv_free(own);
}

static void a_child_of_a_child(void) {
    kv_store *store = open_store("local");
    int64_t number = 5;
    init_number(store, 1, 0);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    reap(start_child(fork_again, store, ticket));
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    kv_free(store);
}

#if defined(__SANITIZE_ADDRESS__)
enum { FORKS_BESIDE_THREADS_WORK = 0 };
#else
enum { FORKS_BESIDE_THREADS_WORK = 1 };
#endif

int main(void) {
    alarm_after_minutes(5);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        the_child_starts_anew_and_the_parent_goes_on(STORE_TYPES[i]);
        a_bound_list_belongs_to_its_process(STORE_TYPES[i]);
        a_fork_in_the_middle_of_work(STORE_TYPES[i]);
    }
    if (FORKS_BESIDE_THREADS_WORK) {
        forks_beside_busy_threads();
    } else {
        puts("api_fork: no forks beside busy threads under AddressSanitizer");
    }
    a_child_of_a_child();
    return check_passed("api_fork");
}
