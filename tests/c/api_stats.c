/* kv_stats: one well-formed JSON object, its members, and how the buffer is used. */
#include "json.h"
#include "support.h"

/* The checker itself refuses what is not JSON. */
static void the_checker_knows_json(void) {
    static const char *const good[] = {
        "{}", " { } ", "{\"a\":1}", "{\"a\":-0.5e+3,\"b\":[],\"c\":[1,{\"d\":null}]}",
        "{\"a\\n\\u00e9\":true , \"b\" : false}",
    };
    static const char *const bad[] = {
        "", "[]", "1", "{", "}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}", "{\"a\":01}",
        "{\"a\":1.}", "{\"a\":.5}", "{\"a\":+1}", "{\"a\":nul}", "{\"a\":1}x", "{\"a\":\"b}",
        "{\"a\":\"\n\"}", "{\"a\":\"\\x\"}", "{\"a\":\"\\u12g4\"}", "{\"a\":[1,]}", "{\"a\":NaN}",
        "{'a':1}", "{\"a\":1 \"b\":2}",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        CHECK(json_is_object(good[i]));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(!json_is_object(bad[i]));
    }
    CHECK(json_number("{\"b\":[1,{\"a\":2}],\"a\":3}", "a") == 3);
    CHECK(json_member("{\"ab\":1}", "a") == NULL);
    CHECK(json_text_is("{\"a\":\"xy\"}", "a", "xy"));
    CHECK(!json_text_is("{\"a\":\"xyz\"}", "a", "xy"));
}

static double stat_of(kv_store *store, const char *name) {
    char text[4096];
    CHECK_STATUS(kv_stats(store, text, sizeof text, NULL), KV_OK);
    return json_number(text, name);
}

static void counters_count(const char *type) {
    kv_store *store = open_store(type);
    static const char *const counters[] = {"keys",       "bytes",      "pushes",
                                           "pulls",      "push_bytes", "pull_bytes",
                                           "updater_calls", "pending", "failed"};
    char text[4096];
    float data[6] = {0};
    int64_t shape[] = {2, 3};
    kv_key keys[] = {1, 1, 2};
    kv_tensor tensor = kv_tensor_cpu(data, KV_F32, 2, shape);
    kv_tensor values[] = {tensor, tensor, tensor};
    CHECK_STATUS(kv_stats(store, text, sizeof text, NULL), KV_OK);
    CHECK(json_text_is(text, "type", type));
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        CHECK(json_number(text, counters[i]) == 0);
    }
    CHECK(json_number(text, "threads") >= 1);
    CHECK(json_member(text, "isa") != NULL && *json_member(text, "isa") == '"');
    /* No tensor has been in GPU memory. */
    CHECK(json_number(text, "pinned_bytes") == 0);
    CHECK(json_member(text, "devices") != NULL && strncmp(json_member(text, "devices"), "[]", 2) == 0);

    CHECK_STATUS(kv_init(store, keys + 1, values, 2), KV_OK);
    CHECK(stat_of(store, "keys") == 2);
    CHECK(stat_of(store, "bytes") == 48);
    CHECK_STATUS(kv_push(store, keys, values, 3, 0, NULL), KV_OK);
    CHECK(stat_of(store, "push_bytes") == 72);
    CHECK_STATUS(kv_pull(store, keys, values, 1, 0, NULL), KV_OK);
    CHECK(stat_of(store, "pull_bytes") == 24);
    CHECK(stat_of(store, "pulls") >= 1);
    CHECK(stat_of(store, "pushes") >= 2);
    CHECK(stat_of(store, "updater_calls") == 0);
    CHECK_STATUS(kv_remove(store, keys, 1), KV_OK);
    CHECK(stat_of(store, "keys") == 1);
    CHECK(stat_of(store, "bytes") == 24);
    kv_free(store);
}

static kv_status refuse_key_two(void *context, kv_key key, const kv_tensor *input,
                                const kv_tensor *stored) {
    return key == 2 ? KV_ERR_UNSUPPORTED : add_behind_gate(context, key, input, stored);
}

static void pending_and_failed_operations_are_seen(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    int64_t number = 1;
    init_number(store, 1, 0);
    init_number(store, 2, 0);
    CHECK_STATUS(kv_set_updater(store, refuse_key_two, &at, NULL), KV_OK);
    kv_ticket failing = send_number(store, 2, &number, 0);
    while (kv_wait(store, failing, WAIT_MS) == KV_ERR_TIMEOUT) {
    }
    send_number(store, 2, &number, 0);
    send_number(store, 1, &number, 0);
    send_number(store, 1, &number, 0);
    gate_await(&at, 1);
    CHECK(stat_of(store, "pending") >= 2);
    gate_open(&at);
    for (int64_t start = now_ms(); stat_of(store, "pending") > 0;) {
        CHECK(now_ms() - start < WAIT_MS);
        sleep_ms(1);
    }
    CHECK(stat_of(store, "failed") == 1);
    CHECK(stat_of(store, "updater_calls") == 4);
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_ERR_CALLBACK);
    CHECK(stat_of(store, "failed") == 0);
    kv_free(store);
}

static void the_buffer_is_used_as_promised(const char *type) {
    kv_store *store = open_store(type);
    char text[4096], small[4096];
    size_t length = 0, again = 0;
    CHECK_STATUS(kv_stats(store, NULL, 0, &length), KV_OK);
    CHECK(length > 2 && length < sizeof text - 1);
    memset(text, 'x', sizeof text);
    CHECK_STATUS(kv_stats(store, text, length + 1, &again), KV_OK);
    CHECK(again == length && strlen(text) == length && text[length + 1] == 'x');
    CHECK(json_is_object(text));
    CHECK_STATUS(kv_stats(store, NULL, 0, NULL), KV_OK);

    memset(small, 'x', sizeof small);
    for (size_t capacity = 1; capacity <= length; capacity += length - 1) {
        again = 0;
        CHECK_STATUS(kv_stats(store, small, capacity, &again), KV_ERR_BUFFER_TOO_SMALL);
        CHECK(again == length);
        CHECK_STATUS(kv_stats(store, small, capacity, NULL), KV_ERR_BUFFER_TOO_SMALL);
    }
    again = 0;
    CHECK_STATUS(kv_stats(store, small, 0, &again), KV_OK);
    CHECK(again == length);
    for (size_t i = 0; i < sizeof small; i++) {
        CHECK(small[i] == 'x');
    }
    CHECK_STATUS(kv_stats(store, NULL, 10, &again), KV_ERR_INVALID_ARGUMENT);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(5);
    the_checker_knows_json();
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        counters_count(STORE_TYPES[i]);
        pending_and_failed_operations_are_seen(STORE_TYPES[i]);
        the_buffer_is_used_as_promised(STORE_TYPES[i]);
    }
    return check_passed("api_stats");
}
