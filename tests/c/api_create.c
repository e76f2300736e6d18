/* Stores: types, environment, and the answers that a local store gives about its job. */
#include "json.h"
#include "support.h"

static void each_type_has_aliases_in_any_case(void) {
    static const char *const types[][2] = {
        {"local", "local"},
        {"local_update_cpu", "local"},
        {"local_allreduce_cpu", "local"},
        {"LOCAL", "local"},
        {"Local_Update_CPU", "local"},
        {"device", "device"},
        {"local_allreduce_device", "device"},
        {"Device", "device"},
        {"LOCAL_ALLREDUCE_DEVICE", "device"},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        const char *type = NULL;
        kv_store *store = open_store(types[i][0]);
        CHECK_STATUS(kv_type(store, &type), KV_OK);
        CHECK(strcmp(type, types[i][1]) == 0);
        kv_free(store);
        CHECK(strcmp(type, types[i][1]) == 0); /* the text outlives the store */
    }
}

static void unknown_types_are_answered_with_the_valid_ones(void) {
    static const char *const types[] = {"",        "loca", "localx", "local ", " local", "foo",
                                        "devices", "dist_", "p3",    "nccl"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        kv_store *store = (kv_store *)&i;
        CHECK_STATUS(kv_create(types[i], NULL, &store), KV_ERR_INVALID_ARGUMENT);
        CHECK(store == (kv_store *)&i);
        CHECK(error_says(types[i]));
        CHECK(error_says("local"));
        CHECK(error_says("device"));
    }
    kv_store *store = NULL;
    CHECK_STATUS(kv_create("loc\xff", NULL, &store), KV_ERR_INVALID_ARGUMENT);
    CHECK(store == NULL);
}

/* A library with the distributed stores misses an option, one without them says so. */
static void distributed_types_are_known(void) {
    static const char *const types[] = {
        "dist",       "dist_sync",        "dist_async",  "dist_device_sync",  "dist_sync_device",
        "dist_device", "dist_device_async", "DIST_SYNC", "Dist_Device_Async",
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        kv_store *store = NULL;
        kv_status status = kv_create(types[i], NULL, &store);
        CHECK(status == KV_ERR_OPTION || status == KV_ERR_UNSUPPORTED);
        CHECK(store == NULL);
        CHECK(error_says(status == KV_ERR_OPTION ? "kvstore run" : "not in this build"));
    }
}

static void a_bad_environment_variable_is_named(void) {
    static const char *const bad[][2] = {
        {"KV_THREADS", "zero"},   {"KV_THREADS", "0"},          {"KV_ISA", "sse9"},
        {"KV_TIMEOUT_MS", "-5"},  {"KV_UPDATER_UNDO", "maybe"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kv_store *store = NULL;
        CHECK(setenv(bad[i][0], bad[i][1], 1) == 0);
        CHECK_STATUS(kv_create("local", NULL, &store), KV_ERR_OPTION);
        CHECK(store == NULL);
        CHECK(error_says(bad[i][0]));
        CHECK(error_says(bad[i][1]));
        CHECK(unsetenv(bad[i][0]) == 0);
        kv_free(open_store("local"));
    }
}

/* As if it were not there: a way for scripts to unset one. */
static void an_empty_environment_variable_does_not_count(void) {
    CHECK(setenv("KV_THREADS", "", 1) == 0);
    CHECK(setenv("KV_UPDATER_UNDO", "", 1) == 0);
    kv_free(open_store("local"));
    CHECK(unsetenv("KV_THREADS") == 0);
    CHECK(unsetenv("KV_UPDATER_UNDO") == 0);
}

static void check_settings(kv_store *store, int threads, const char *isa) {
    char stats[4096];
    CHECK_STATUS(kv_stats(store, stats, sizeof stats, NULL), KV_OK);
    CHECK((int)json_number(stats, "threads") == threads);
    CHECK(json_text_is(stats, "isa", isa));
}

static void the_environment_counts_unless_the_config_says_more(void) {
    CHECK(setenv("KV_THREADS", "3", 1) == 0);
    CHECK(setenv("KV_ISA", "scalar", 1) == 0);
    kv_store *store = open_store("local");
    check_settings(store, 3, "scalar");
    kv_free(store);

    store = open_with("threads", "2");
    check_settings(store, 2, "scalar");
    kv_free(store);
    CHECK(unsetenv("KV_THREADS") == 0);
    CHECK(unsetenv("KV_ISA") == 0);
}

/* KV_TIMEOUT_MS and KV_UPDATER_UNDO show in what a store does. */
static kv_status spoil_and_fail(void *context, kv_key key, const kv_tensor *input,
                                const kv_tensor *stored) {
    (void)context;
    (void)key;
    *number_of(stored) = -*number_of(input);
    return KV_ERR_INVALID_ARGUMENT;
}

static void updater_undo_comes_from_the_environment(void) {
    CHECK(setenv("KV_UPDATER_UNDO", "yes", 1) == 0);
    kv_store *store = open_store("local");
    CHECK(unsetenv("KV_UPDATER_UNDO") == 0);
    init_number(store, 1, 10);
    CHECK_STATUS(kv_set_updater(store, spoil_and_fail, NULL, NULL), KV_OK);
    CHECK_STATUS(push_number(store, 1, 5), KV_ERR_CALLBACK);
    CHECK(pull_number(store, 1) == 10);
    kv_free(store);
}

/* 1 is lost beside 1e8: from the left the last one is not, as the neighbour of -1e8 it is. */
static void sum_order_comes_from_the_environment(void) {
    static const struct {
        const char *value;
        float expected;
    } orders[] = {{"linear", 1.0f}, {"tree", 0.0f}};
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        CHECK(setenv("KV_SUM_ORDER", orders[i].value, 1) == 0);
        kv_store *store = open_store("local");
        CHECK(unsetenv("KV_SUM_ORDER") == 0);
        float values[] = {1e8f, 1.0f, -1e8f, 1.0f}, out = 7.0f;
        kv_key keys[] = {7, 7, 7, 7};
        kv_tensor tensors[4], stored = kv_tensor_cpu(&out, KV_F32, 0, NULL);
        for (size_t at = 0; at < 4; at++) {
            tensors[at] = kv_tensor_cpu(&values[at], KV_F32, 0, NULL);
        }
        CHECK_STATUS(kv_init(store, keys, &stored, 1), KV_OK);
        CHECK_STATUS(kv_push(store, keys, tensors, 4, 0, NULL), KV_OK);
        CHECK_STATUS(kv_pull(store, keys, &stored, 1, 0, NULL), KV_OK);
        CHECK(out == orders[i].expected);
        kv_status status = kv_set_compression(store, "2bit", NULL);
        CHECK(status == (i == 1 ? KV_ERR_UNSUPPORTED : KV_OK));
        CHECK(i == 0 || error_says("sum_order=tree"));
        kv_free(store);
    }
}

/* A log needs digests, and a folder that can be made. */
static void digest_log_comes_from_the_environment(void) {
    kv_store *store = NULL;
    CHECK(setenv("KV_DIGEST_LOG", "/proc/no such folder", 1) == 0);
    CHECK_STATUS(kv_create("local", NULL, &store), KV_ERR_OPTION);
    CHECK(error_says("digests"));
    CHECK(setenv("KV_DIGESTS", "values", 1) == 0);
    CHECK_STATUS(kv_create("local", NULL, &store), KV_ERR_IO);
    CHECK(error_says("/proc/no such folder"));
    CHECK(unsetenv("KV_DIGEST_LOG") == 0);
    CHECK_STATUS(kv_create("local", NULL, &store), KV_OK);
    CHECK(unsetenv("KV_DIGESTS") == 0);
    kv_free(store);
}

static void timeout_ms_comes_from_the_environment(void) {
    gate at = GATE_CLOSED;
    int64_t number = 1;
    CHECK(setenv("KV_TIMEOUT_MS", "30", 1) == 0);
    kv_store *store = open_store("local");
    CHECK(unsetenv("KV_TIMEOUT_MS") == 0);
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    gate_await(&at, 1);
    CHECK_STATUS(push_number(store, 1, 1), KV_ERR_TIMEOUT);
    gate_open(&at);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    kv_free(store);
}

static void a_local_store_is_the_only_worker(const char *type) {
    kv_store *store = open_store(type);
    int32_t role = -1, rank = -1, count = -1;
    CHECK_STATUS(kv_role(store, &role), KV_OK);
    CHECK(role == KV_ROLE_WORKER);
    CHECK_STATUS(kv_rank(store, &rank), KV_OK);
    CHECK(rank == 0);
    CHECK_STATUS(kv_num_workers(store, &count), KV_OK);
    CHECK(count == 1);
    CHECK_STATUS(kv_num_lost(store, &count), KV_OK);
    CHECK(count == 0);
    CHECK(kv_capable("optimizer") == 1 && kv_capable("sum_order") == 1);
    CHECK(kv_capable("Optimizer") == 0 && kv_capable("") == 0 && kv_capable("teleport") == 0);
    CHECK_STATUS(kv_barrier(store, 0), KV_OK);
    CHECK_STATUS(kv_barrier(store, -1), KV_OK);
    CHECK_STATUS(kv_barrier(store, 1000), KV_OK);
    CHECK_STATUS(kv_barrier(store, -2), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_done(store), KV_OK);
    CHECK_STATUS(kv_resume(store, 0), KV_OK);
    CHECK_STATUS(kv_resume(store, -1), KV_OK);
    CHECK_STATUS(kv_resume(store, -2), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_serve(store), KV_ERR_ROLE);
    CHECK(error_says("worker"));
    init_number(store, 1, 5);
    CHECK(pull_number(store, 1) == 5); /* done has no effect here */
    kv_free(store);
}

/* The group of a local store has worker 0 alone, keys of its own, and outlives the store. */
static void a_group_is_a_store_of_its_own(const char *type) {
    const int32_t zero = 0, one = 1, below = -1;
    int32_t rank = -1, count = -1;
    char long_name[300];
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    kv_store *store = open_store(type), *group = NULL;
    CHECK_STATUS(kv_group(store, "", &zero, 1, &group), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_group(store, long_name, &zero, 1, &group), KV_ERR_INVALID_ARGUMENT);
    CHECK(error_says("255 bytes"));
    CHECK_STATUS(kv_group(store, "g", &one, 1, &group), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_group(store, "g", NULL, 0, &group), KV_ERR_INVALID_ARGUMENT);
    CHECK(error_says("worker 0 alone"));
    CHECK_STATUS(kv_group(store, "g", &below, 1, &group), KV_ERR_INVALID_ARGUMENT);
    CHECK(error_says("rank -1; ranks begin at 0"));
    CHECK(group == NULL);
    CHECK_STATUS(kv_group(store, "g", &zero, 1, &group), KV_OK);
    CHECK_STATUS(kv_rank(group, &rank), KV_OK);
    CHECK_STATUS(kv_num_workers(group, &count), KV_OK);
    CHECK(rank == 0 && count == 1);
    init_number(store, 1, 10);
    init_number(group, 1, 20);
    CHECK_STATUS(push_number(group, 1, 21), KV_OK);
    CHECK(pull_number(store, 1) == 10 && pull_number(group, 1) == 21);
    CHECK_STATUS(kv_barrier(group, -1), KV_OK);
    kv_free(store);
    CHECK(pull_number(group, 1) == 21);
    CHECK_STATUS(kv_close(group, -1), KV_OK);
    kv_free(group);
}

static void stores_are_separate(void) {
    kv_store *first = open_store("local"), *second = open_store("local");
    init_number(first, 1, 10);
    init_number(second, 1, 20);
    CHECK_STATUS(push_number(first, 1, 11), KV_OK);
    CHECK(pull_number(first, 1) == 11);
    CHECK(pull_number(second, 1) == 20);
    kv_free(first);
    CHECK(pull_number(second, 1) == 20);
    kv_free(second);
}

static void versions_and_status_names(void) {
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", KV_VERSION_MAJOR, KV_VERSION_MINOR,
             KV_VERSION_PATCH);
    CHECK(strcmp(kv_version(), version) == 0);
    CHECK(kv_abi_version() == KV_ABI_VERSION);
#define NAMED(status) CHECK(strcmp(kv_status_name(status), #status) == 0)
    NAMED(KV_OK);
    NAMED(KV_ERR_INVALID_ARGUMENT);
    NAMED(KV_ERR_UNSUPPORTED);
    NAMED(KV_ERR_OPTION);
    NAMED(KV_ERR_KEY_NOT_FOUND);
    NAMED(KV_ERR_KEY_EXISTS);
    NAMED(KV_ERR_NAME_COLLISION);
    NAMED(KV_ERR_SHAPE_MISMATCH);
    NAMED(KV_ERR_DTYPE_MISMATCH);
    NAMED(KV_ERR_OVERLAP);
    NAMED(KV_ERR_TICKET);
    NAMED(KV_ERR_CALLBACK);
    NAMED(KV_ERR_REENTRANT);
    NAMED(KV_ERR_BUFFER_TOO_SMALL);
    NAMED(KV_ERR_CLOSED);
    NAMED(KV_ERR_FORKED);
    NAMED(KV_ERR_ROLE);
    NAMED(KV_ERR_DIFFERS);
    NAMED(KV_ERR_TIMEOUT);
    NAMED(KV_ERR_CANCELLED);
    NAMED(KV_ERR_EXPIRED);
    NAMED(KV_ERR_PEER_LOST);
    NAMED(KV_ERR_EVICTED);
    NAMED(KV_ERR_REFUSED);
    NAMED(KV_ERR_OUT_OF_MEMORY);
    NAMED(KV_ERR_IO);
    NAMED(KV_ERR_CORRUPT);
    NAMED(KV_ERR_NETWORK);
    NAMED(KV_ERR_INTERNAL);
    NAMED(KV_ERR_POISONED);
#undef NAMED
    CHECK(strcmp(kv_status_name(-1), "unknown status") == 0);
    CHECK(strcmp(kv_status_name(18), "unknown status") == 0);
    CHECK(strcmp(kv_status_name(INT32_MAX), "unknown status") == 0);
    CHECK(strcmp(kv_status_name(INT32_MIN), "unknown status") == 0);
}

int main(void) {
    each_type_has_aliases_in_any_case();
    unknown_types_are_answered_with_the_valid_ones();
    distributed_types_are_known();
    a_bad_environment_variable_is_named();
    an_empty_environment_variable_does_not_count();
    the_environment_counts_unless_the_config_says_more();
    updater_undo_comes_from_the_environment();
    sum_order_comes_from_the_environment();
    digest_log_comes_from_the_environment();
    timeout_ms_comes_from_the_environment();
    a_local_store_is_the_only_worker("local");
    a_local_store_is_the_only_worker("device");
    a_group_is_a_store_of_its_own("local");
    a_group_is_a_store_of_its_own("device");
    stores_are_separate();
    versions_and_status_names();
    return check_passed("api_create");
}
