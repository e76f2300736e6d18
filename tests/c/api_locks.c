/* A removal or a load that waits for a key in use holds up no call that does not use that key; calls
 * that do use it end by their own time limit and interrupt. */
#include "files.h"

static const char *path;

/* Key 1 waits at the gate, other keys do not. */
static kv_status add_behind_gate_of_key_1(void *context, kv_key key, const kv_tensor *input,
                                          const kv_tensor *stored) {
    if (key == 1) {
        gate_pass(context);
    }
    return add_number(NULL, key, input, stored);
}

/* A call on a thread of its own. */
typedef struct caller {
    pthread_t thread;
    kv_store *store;
    kv_status (*call)(kv_store *store);
    int ends_at;      /* the question that ends the call; 0 for none */
    atomic_int asked; /* above 0: the call waits */
    atomic_int done;
    kv_status status;
} caller;

static int32_t ask(void *context) {
    caller *my = context;
    return atomic_fetch_add(&my->asked, 1) + 1 == my->ends_at;
}

static void *run(void *context) {
    caller *my = context;
    CHECK_STATUS(kv_set_interrupt(ask, my), KV_OK);
    my->status = my->call(my->store);
    CHECK_STATUS(kv_set_interrupt(NULL, NULL), KV_OK);
    atomic_store(&my->done, 1);
    return NULL;
}

static void start(caller *my, kv_store *store, kv_status (*call)(kv_store *store), int ends_at) {
    *my = (caller){.store = store, .call = call, .ends_at = ends_at};
    CHECK(pthread_create(&my->thread, NULL, run, my) == 0);
}

static kv_status join(caller *my) {
    for (int64_t end = now_ms() + WAIT_MS / 4; !atomic_load(&my->done); sleep_ms(1)) {
        CHECK(now_ms() < end);
    }
    CHECK(pthread_join(my->thread, NULL) == 0);
    return my->status;
}

static void await_question(caller *my) {
    for (int64_t end = now_ms() + WAIT_MS; atomic_load(&my->asked) == 0; sleep_ms(1)) {
        CHECK(now_ms() < end && !atomic_load(&my->done));
    }
}

static kv_status call_alone(kv_store *store, kv_status (*call)(kv_store *store), int ends_at) {
    caller one;
    start(&one, store, call, ends_at);
    return join(&one);
}

static kv_status push_1(kv_store *store) {
    return push_number(store, 1, 100);
}

static kv_status push_2(kv_store *store) {
    return push_number(store, 2, 100);
}

static kv_status pull_2(kv_store *store) {
    int64_t number = -1;
    kv_tensor out = number_tensor(&number);
    kv_key key = 2;
    return kv_pull(store, &key, &out, 1, 0, NULL);
}

static kv_status init_3(kv_store *store) {
    int64_t number = 3;
    kv_tensor value = number_tensor(&number);
    kv_key key = 3;
    return kv_init(store, &key, &value, 1);
}

static kv_status broadcast_4(kv_store *store) {
    int64_t number = 4, got = -1;
    kv_tensor value = number_tensor(&number), out = number_tensor(&got);
    kv_key key = 4;
    return kv_broadcast(store, &key, &value, 1, &key, &out, 1, 0, NULL);
}

static kv_status remove_1(kv_store *store) {
    kv_key key = 1;
    return kv_remove(store, &key, 1);
}

static kv_status remove_2(kv_store *store) {
    kv_key key = 2;
    return kv_remove(store, &key, 1);
}

static kv_status load(kv_store *store) {
    return kv_load(store, path);
}

static kv_status assign(kv_store *store) {
    return kv_set_updater(store, NULL, NULL, NULL);
}

/* A store in which a push of key 1 stands in its updater. */
typedef struct busy {
    kv_store *store;
    gate at;
    caller push;
} busy;

static void begin(busy *job, const char *timeout_ms) {
    job->store = open_with("timeout_ms", timeout_ms);
    job->at = (gate)GATE_CLOSED;
    init_number(job->store, 1, 1);
    init_number(job->store, 2, 2);
    CHECK_STATUS(kv_set_updater(job->store, add_behind_gate_of_key_1, &job->at, NULL), KV_OK);
    start(&job->push, job->store, push_1, 0);
    gate_await(&job->at, 1);
}

static void end(busy *job) {
    CHECK_STATUS(join(&job->push), KV_OK);
    kv_free(job->store);
}

/* `wait` waits for key 1; everything else goes on, and a push of key 1 can be interrupted. */
static void others_go_on(kv_status (*wait)(kv_store *store)) {
    busy job;
    caller waiting;
    begin(&job, "-1");
    start(&waiting, job.store, wait, 0);
    await_question(&waiting);
    CHECK_STATUS(call_alone(job.store, init_3, 0), KV_OK);
    CHECK_STATUS(call_alone(job.store, broadcast_4, 0), KV_OK);
    CHECK_STATUS(call_alone(job.store, pull_2, 0), KV_OK);
    CHECK_STATUS(call_alone(job.store, push_2, 0), KV_OK);
    CHECK_STATUS(call_alone(job.store, push_1, 2), KV_ERR_CANCELLED);
    CHECK_STATUS(call_alone(job.store, load, 2), KV_ERR_CANCELLED);
    CHECK_STATUS(call_alone(job.store, remove_1, 2), KV_ERR_CANCELLED);
    CHECK_STATUS(call_alone(job.store, remove_2, 0), KV_OK);
    CHECK_STATUS(call_alone(job.store, assign, 0), KV_OK);
    CHECK(!atomic_load(&waiting.done));
    gate_open(&job.at);
    CHECK_STATUS(join(&waiting), KV_OK);
    if (wait == load) {
        /* All of the file is there, with what came and went meanwhile. */
        CHECK(pull_number(job.store, 1) == 10);
        CHECK(pull_number(job.store, 2) == 20);
        CHECK(pull_number(job.store, 3) == 30);
    }
    CHECK(pull_number(job.store, 4) == 4);
    end(&job);
}

static kv_status remove_1_again_and_again(kv_store *store) {
    kv_status status = KV_ERR_TIMEOUT;
    for (int64_t end = now_ms() + WAIT_MS; status == KV_ERR_TIMEOUT && now_ms() < end;) {
        status = remove_1(store);
    }
    return status;
}

static kv_status load_again_and_again(kv_store *store) {
    kv_status status = KV_ERR_TIMEOUT;
    for (int64_t end = now_ms() + WAIT_MS; status == KV_ERR_TIMEOUT && now_ms() < end;) {
        status = load(store);
    }
    return status;
}

/* With a time limit for every call, calls on key 1 end by it, and others are done. */
static void time_limits_hold(kv_status (*wait)(kv_store *store)) {
    busy job;
    caller waiting;
    begin(&job, "200");
    start(&waiting, job.store, wait, 0);
    await_question(&waiting);
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(call_alone(job.store, push_1, 0), KV_ERR_TIMEOUT);
        CHECK_STATUS(call_alone(job.store, remove_1, 0), KV_ERR_TIMEOUT);
        CHECK_STATUS(call_alone(job.store, load, 0), KV_ERR_TIMEOUT);
        CHECK_STATUS(call_alone(job.store, push_2, 0), KV_OK);
    }
    CHECK_STATUS(call_alone(job.store, init_3, 0), KV_OK);
    gate_open(&job.at);
    CHECK_STATUS(join(&waiting), KV_OK);
    end(&job);
}

/* Loads and removals of the same keys, in different orders, do not block each other. */
static void *load_often(void *store) {
    for (long i = 0; i < scaled(300, 20); i++) {
        CHECK_STATUS(kv_load(store, path), KV_OK);
    }
    return NULL;
}

static void *come_and_go(void *store) {
    kv_key keys[] = {3, 1};
    int64_t numbers[] = {3, 1};
    kv_tensor values[] = {number_tensor(&numbers[0]), number_tensor(&numbers[1])};
    for (long i = 0; i < scaled(2000, 50); i++) {
        kv_status status = kv_remove(store, keys, 2);
        CHECK(status == KV_OK || status == KV_ERR_KEY_NOT_FOUND);
        status = kv_init(store, keys, values, 2);
        CHECK(status == KV_OK || status == KV_ERR_KEY_EXISTS);
    }
    return NULL;
}

static void loads_and_removals_end(void) {
    kv_store *store = open_store("local");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, i < 2 ? load_often : come_and_go, store) == 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_STATUS(kv_load(store, path), KV_OK);
    CHECK(pull_number(store, 1) == 10);
    CHECK(pull_number(store, 2) == 20);
    CHECK(pull_number(store, 3) == 30);
    kv_free(store);
}

static void make_file(void) {
    kv_store *store = open_store("local");
    path = new_folder("model.safetensors");
    for (kv_key key = 1; key <= 3; key++) {
        init_number(store, key, (int64_t)key * 10);
    }
    CHECK_STATUS(kv_save(store, path), KV_OK);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(5);
    make_file();
    others_go_on(remove_1);
    others_go_on(load);
    time_limits_hold(remove_1_again_and_again);
    time_limits_hold(load_again_and_again);
    loads_and_removals_end();
    CHECK(remove(path) == 0);
    remove_folder();
    return check_passed("api_locks");
}
