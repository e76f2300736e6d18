/* Memory of configs, stores, keys, updaters and loggers, from creation to the end. */
#include "leak.h"

static void configs(void) {
    kv_config *config = NULL;
    CHECK_STATUS(kv_config_create(&config), KV_OK);
    CHECK_STATUS(kv_config_set(config, "threads", "2"), KV_OK);
    CHECK_STATUS(kv_config_set(config, "threads", "3"), KV_OK);
    CHECK_STATUS(kv_config_set(config, "updater_undo", "yes"), KV_OK);
    kv_config_free(config);
}

/* A store of each type with integers, names and values of some size. */
static void stores_with_keys(void) {
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        float data[300] = {0};
        int64_t shape[] = {300};
        kv_store *store = open_store(STORE_TYPES[i]);
        kv_tensor value = kv_tensor_cpu(data, KV_F32, 1, shape);
        for (kv_key key = 0; key < 5; key++) {
            char name[32];
            kv_key named = 0;
            snprintf(name, sizeof name, "layer%d.weight", (int)key);
            CHECK_STATUS(kv_intern(store, name, &named), KV_OK);
            CHECK_STATUS(kv_init(store, &named, &value, 1), KV_OK);
            CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
            CHECK_STATUS(kv_push(store, &named, &value, 1, 0, NULL), KV_OK);
            CHECK_STATUS(kv_remove(store, &named, 1), KV_OK);
        }
        if (i == 0) {
            CHECK_STATUS(kv_close(store, 0), KV_OK);
        }
        kv_free(store);
    }
}

/* One store lives on while its keys come and go. */
static kv_store *lasting;

static void keys_come_and_go(void) {
    float data[4][50] = {{0}};
    int64_t shape[] = {50};
    kv_key keys[] = {1, 2, 3, 0};
    kv_tensor values[4];
    for (int i = 0; i < 4; i++) {
        values[i] = kv_tensor_cpu(data[i], KV_F32, 1, shape);
    }
    CHECK_STATUS(kv_intern(lasting, "bias", &keys[3]), KV_OK);
    CHECK_STATUS(kv_init(lasting, keys, values, 4), KV_OK);
    CHECK_STATUS(kv_pushpull(lasting, keys, values, 4, keys, values, 4, 0, NULL), KV_OK);
    kv_bound *bound = NULL;
    CHECK_STATUS(kv_bind(lasting, keys, values, 4, keys, values, 4, &bound), KV_OK);
    CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_OK);
    CHECK_STATUS(kv_remove(lasting, keys, 4), KV_OK);
    CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_ERR_KEY_NOT_FOUND);
    kv_bound_free(bound);
}

/* Contexts on the heap: `drop` is the only one who frees them. */
static void updaters_with_contexts(void) {
    kv_store *store = open_with("updater_undo", "yes");
    init_number(store, 1, 0);
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(kv_set_updater(store, add_number, malloc(24), free), KV_OK);
        CHECK_STATUS(push_number(store, 1, 1), KV_OK);
    }
    kv_free(store);
}

static void ignore_line(void *context, int32_t level, const char *message) {
    (void)context;
    (void)level;
    (void)message;
}

static void loggers_with_contexts(void) {
    CHECK_STATUS(kv_set_logger(KV_LOG_DEBUG, ignore_line, malloc(24), free), KV_OK);
    kv_free(open_store("local"));
    CHECK_STATUS(kv_set_logger(KV_LOG_OFF, NULL, malloc(24), free), KV_OK);
}

static void *short_thread(void *context) {
    kv_key key = 99;
    CHECK_STATUS(push_number(context, 1, 1), KV_OK);
    CHECK_STATUS(kv_remove(context, &key, 1), KV_ERR_KEY_NOT_FOUND);
    return NULL;
}

/* What the library keeps for a thread ends with the thread. */
static void threads_come_and_go(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, short_thread, lasting) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

int main(void) {
    alarm_after_minutes(10);
    long rounds = scaled(4000, 40);
    lasting = open_store("local");
    check_no_growth(configs, rounds);
    check_no_growth(stores_with_keys, rounds);
    check_no_growth(keys_come_and_go, rounds);
    check_no_growth(updaters_with_contexts, rounds);
    check_no_growth(loggers_with_contexts, rounds);
    init_number(lasting, 1, 0);
    check_no_growth(threads_come_and_go, rounds);
    kv_free(lasting);
    return check_passed("leak_create");
}
