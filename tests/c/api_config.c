/* Options: names, values, precedence, and the life of a kv_config. */
#include "json.h"
#include "support.h"

static kv_config *new_config(void) {
    kv_config *config = NULL;
    CHECK_STATUS(kv_config_create(&config), KV_OK);
    CHECK(config != NULL);
    return config;
}

static void good_values_are_accepted(void) {
    static const char *const good[][2] = {
        {"threads", "1"},       {"threads", "256"},     {"isa", "auto"},
        {"isa", "scalar"},      {"isa", "avx2"},        {"isa", "avx512"},
        {"isa", "neon"},        {"timeout_ms", "-1"},   {"timeout_ms", "0"},
        {"timeout_ms", "600000"},
        {"updater_undo", "no"}, {"updater_undo", "yes"}, {"cuda", "auto"},
        {"cuda", "no"},         {"cuda", "/opt/libcuda.so.1"},
        {"device_bytes", "4096"}, {"sum_order", "linear"}, {"sum_order", "tree"},
        {"device_bytes", "4096"}, {"digests", "off"},     {"digests", "all"},
        {"digest_log", "/tmp/log"}, {"digest_log_bytes", "65536"},
        {"servers", "embedded"}, {"servers", "1"},
    };
    kv_config *config = new_config();
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        CHECK_STATUS(kv_config_set(config, good[i][0], good[i][1]), KV_OK);
    }
    kv_config_free(config);
}

static void bad_values_name_the_option_and_the_value(void) {
    static const char *const bad[][2] = {
        {"threads", "0"},        {"threads", "257"},      {"threads", "-1"},
        {"threads", ""},         {"threads", "many"},     {"threads", "4x"},
        {"threads", "1.5"},      {"threads", "99999999999999999999"},
        {"isa", "sse9"},         {"isa", ""},             {"timeout_ms", "soon"},
        {"timeout_ms", ""},      {"timeout_ms", "-2"},    {"timeout_ms", "9223372036854775808"},
        {"updater_undo", "maybe"}, {"updater_undo", ""},     {"cuda", ""},
        {"device_bytes", "4095"}, {"device_bytes", "all"}, {"sum_order", "Tree"}, {"sum_order", ""},
        {"device_bytes", "4095"}, {"device_bytes", "all"},
        {"digests", "some"},     {"digest_log", ""},       {"digest_log_bytes", "65535"},
        {"servers", "0"},        {"servers", "embed"},
    };
    kv_config *config = new_config();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_STATUS(kv_config_set(config, bad[i][0], bad[i][1]), KV_ERR_OPTION);
        CHECK(error_says(bad[i][0]));
        CHECK(error_says(bad[i][1]));
    }
    kv_config_free(config);
}

static void unknown_names_are_answered_with_near_ones(void) {
    kv_config *config = new_config();
    CHECK_STATUS(kv_config_set(config, "thread", "2"), KV_ERR_OPTION);
    CHECK(error_says("\"thread\""));
    CHECK(error_says("threads"));
    CHECK_STATUS(kv_config_set(config, "timeout", "2"), KV_ERR_OPTION);
    CHECK(error_says("timeout_ms"));
    CHECK_STATUS(kv_config_set(config, "updater-undo", "yes"), KV_ERR_OPTION);
    CHECK(error_says("updater_undo"));
    CHECK_STATUS(kv_config_set(config, "", "2"), KV_ERR_OPTION);
    CHECK_STATUS(kv_config_set(config, "zzzzzzzz", "2"), KV_ERR_OPTION);
    CHECK(error_says("zzzzzzzz"));
    kv_config_free(config);
}

static void text_that_is_not_utf8_is_refused(void) {
    kv_config *config = new_config();
    CHECK_STATUS(kv_config_set(config, "thr\xff", "2"), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_config_set(config, "threads", "\xc3\x28"), KV_ERR_INVALID_ARGUMENT);
    kv_config_free(config);
}

static int threads_of(const kv_config *config) {
    char stats[4096];
    kv_store *store = NULL;
    CHECK_STATUS(kv_create("local", config, &store), KV_OK);
    CHECK_STATUS(kv_stats(store, stats, sizeof stats, NULL), KV_OK);
    kv_free(store);
    return (int)json_number(stats, "threads");
}

static void the_last_good_value_counts(void) {
    kv_config *config = new_config();
    CHECK_STATUS(kv_config_set(config, "threads", "5"), KV_OK);
    CHECK_STATUS(kv_config_set(config, "threads", "3"), KV_OK);
    CHECK(threads_of(config) == 3);
    CHECK_STATUS(kv_config_set(config, "threads", "0"), KV_ERR_OPTION);
    CHECK(threads_of(config) == 3);
    kv_config_free(config);
}

static void one_config_serves_many_stores_and_may_go_first(void) {
    kv_config *config = new_config();
    kv_store *first = NULL, *second = NULL;
    CHECK_STATUS(kv_config_set(config, "threads", "2"), KV_OK);
    CHECK_STATUS(kv_create("local", config, &first), KV_OK);
    CHECK_STATUS(kv_create("device", config, &second), KV_OK);
    kv_config_free(config);
    init_number(first, 1, 10);
    init_number(second, 1, 20);
    CHECK(pull_number(first, 1) == 10);
    CHECK(pull_number(second, 1) == 20);
    kv_free(first);
    kv_free(second);
}

/* The instruction set of another kind of processor is known, and not here. */
static void an_instruction_set_must_be_there(void) {
#if defined(__x86_64__)
    const char *foreign = "neon";
#else
    const char *foreign = "avx2";
#endif
    kv_config *config = new_config();
    kv_store *store = NULL;
    CHECK_STATUS(kv_config_set(config, "isa", foreign), KV_OK);
    CHECK_STATUS(kv_create("local", config, &store), KV_ERR_UNSUPPORTED);
    CHECK(store == NULL);
    CHECK(error_says(foreign));
    kv_config_free(config);
}

/* A name and a value are copied: the buffer may change as soon as the call has returned. */
static void names_and_values_are_copied(void) {
    char name[] = "threads", value[] = "7";
    kv_config *config = new_config();
    CHECK_STATUS(kv_config_set(config, name, value), KV_OK);
    value[0] = '9';
    name[0] = 'x';
    CHECK(threads_of(config) == 7);
    kv_config_free(config);
}

static kv_status create_with_variable(const char *type, const char *name, const char *value) {
    kv_store *store = NULL;
    CHECK(setenv(name, value, 1) == 0);
    kv_status status = kv_create(type, NULL, &store);
    CHECK(unsetenv(name) == 0);
    kv_free(store);
    return status;
}

/* Options of jobs have no effect on a local store; a bad value is an error there too. */
static void bad_values_in_the_environment_are_refused(void) {
    static const char *const bad[][2] = {
        {"KV_THREADS", "0"},        {"KV_TIMEOUT_MS", "soon"}, {"KV_SLICE_BYTES", "1"},
        {"KV_NUM_WORKERS", "none"}, {"KV_ROLE", "boss"},       {"KV_ON_WORKER_LOSS", "stop"},
        {"KV_STALENESS", "-1"},     {"KV_SHM", "1"},           {"KV_TRACE_ROUNDS", "9-5"},
    };
    for (int type = 0; type < STORE_TYPE_COUNT; type++) {
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            CHECK_STATUS(create_with_variable(STORE_TYPES[type], bad[i][0], bad[i][1]),
                         KV_ERR_OPTION);
            CHECK(error_says(bad[i][0]));
            CHECK(error_says(bad[i][1]));
        }
    }
}

/* An empty variable is as good as none; so is one with the name of no option. */
static void empty_and_strange_variables_count_for_nothing(void) {
    static const char *const idle[][2] = {
        {"KV_THREADS", ""},         {"KV_SLICE_BYTES", ""}, {"KV_ROLE", ""},
        {"KV_SLICE_BYTES", "4096"}, {"KV_RANK", "3"},       {"KV_NO_SUCH_OPTION", "x"},
    };
    for (size_t i = 0; i < sizeof idle / sizeof idle[0]; i++) {
        CHECK_STATUS(create_with_variable("local", idle[i][0], idle[i][1]), KV_OK);
    }
}

int main(void) {
    good_values_are_accepted();
    bad_values_name_the_option_and_the_value();
    unknown_names_are_answered_with_near_ones();
    text_that_is_not_utf8_is_refused();
    the_last_good_value_counts();
    one_config_serves_many_stores_and_may_go_first();
    an_instruction_set_must_be_there();
    names_and_values_are_copied();
    bad_values_in_the_environment_are_refused();
    empty_and_strange_variables_count_for_nothing();
    kv_config_free(NULL);
    return check_passed("api_config");
}
