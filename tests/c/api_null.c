/* NULL in every place of every function: a status or nothing, never a crash. */
#include "collectives.h"

/* The call is refused, and says why. */
#define CHECK_REFUSED(call)                              \
    do {                                                 \
        CHECK_STATUS(call, KV_ERR_INVALID_ARGUMENT);     \
        CHECK(strlen(kv_last_error()) > 0);              \
    } while (0)

static void without_a_config(void) {
    kv_config *config = NULL;
    CHECK_REFUSED(kv_config_create(NULL));
    CHECK_REFUSED(kv_config_set(NULL, "threads", "1"));
    CHECK_STATUS(kv_config_create(&config), KV_OK);
    CHECK_REFUSED(kv_config_set(config, NULL, "1"));
    CHECK_REFUSED(kv_config_set(config, "threads", NULL));
    kv_config_free(config);
    kv_config_free(NULL);
}

static void without_a_store(void) {
    int64_t number = 1;
    kv_tensor tensor = number_tensor(&number);
    kv_key key = 1;
    kv_ticket ticket = UNTOUCHED;
    const char *text = NULL;
    int32_t small = 0;
    size_t size = 0;
    CHECK_REFUSED(kv_close(NULL, 0));
    CHECK_REFUSED(kv_type(NULL, &text));
    CHECK_REFUSED(kv_role(NULL, &small));
    CHECK_REFUSED(kv_rank(NULL, &small));
    CHECK_REFUSED(kv_num_workers(NULL, &small));
    CHECK_REFUSED(kv_num_lost(NULL, &small));
    CHECK(kv_capable(NULL) == 0);
    CHECK_REFUSED(kv_barrier(NULL, 0));
    CHECK_REFUSED(kv_done(NULL));
    CHECK_REFUSED(kv_resume(NULL, 0));
    CHECK_REFUSED(kv_group(NULL, "g", &small, 1, &(kv_store *){NULL}));
    CHECK_REFUSED(kv_serve(NULL));
    CHECK_REFUSED(kv_stats(NULL, NULL, 0, &size));
    CHECK_REFUSED(kv_intern(NULL, "name", &key));
    CHECK_REFUSED(kv_key_name(NULL, key, &text));
    CHECK_REFUSED(kv_key_info(NULL, key, NULL, NULL, NULL, 0));
    CHECK_REFUSED(kv_key_device(NULL, key, &(kv_device){KV_CPU, 0}));
    CHECK_REFUSED(kv_keys(NULL, NULL, 0, &size));
    CHECK_REFUSED(kv_digest(NULL, NULL, NULL, 0));
    CHECK_REFUSED(kv_last_round(NULL, key, NULL));
    CHECK_REFUSED(kv_set_weight(NULL, 1));
    CHECK_REFUSED(kv_clear_weight(NULL));
    CHECK_REFUSED(kv_set_clipping(NULL, 1, 0));
    CHECK_REFUSED(kv_last_norm(NULL, NULL, NULL));
    CHECK_REFUSED(kv_begin(NULL));
    CHECK_REFUSED(kv_commit(NULL, NULL));
    CHECK_REFUSED(kv_rollback(NULL));
    CHECK_REFUSED(kv_set_optimizer_for(NULL, NULL, 0, "sgd", NULL));
    CHECK_REFUSED(kv_init(NULL, &key, &tensor, 1));
    CHECK_REFUSED(kv_init(NULL, NULL, NULL, 0));
    CHECK_REFUSED(kv_push(NULL, &key, &tensor, 1, 0, NULL));
    CHECK_REFUSED(kv_push(NULL, &key, &tensor, 1, 0, &ticket));
    CHECK_REFUSED(kv_pull(NULL, &key, &tensor, 1, 0, NULL));
    CHECK_REFUSED(kv_pull(NULL, &key, &tensor, 1, 0, &ticket));
    CHECK_REFUSED(kv_pushpull(NULL, &key, &tensor, 1, &key, &tensor, 1, 0, &ticket));
    CHECK_REFUSED(kv_broadcast(NULL, &key, &tensor, 1, &key, &tensor, 1, 0, &ticket));
    CHECK_REFUSED(kv_push_rows(NULL, &key, &tensor, &tensor, 1, 0, NULL));
    CHECK_REFUSED(kv_pull_rows(NULL, &key, &tensor, &tensor, 1, 0, &ticket));
    CHECK_REFUSED(kv_bind(NULL, &key, &tensor, 1, &key, &tensor, 1, &(kv_bound *){NULL}));
    CHECK_REFUSED(kv_bound_push(NULL, 0, NULL));
    CHECK_REFUSED(kv_bound_pull(NULL, 0, &ticket));
    CHECK_REFUSED(kv_bound_pushpull(NULL, 0, NULL));
    check_collectives(NULL, KV_ERR_INVALID_ARGUMENT, NULL);
    check_collectives(NULL, KV_ERR_INVALID_ARGUMENT, &ticket);
    kv_bound_free(NULL);
    CHECK_REFUSED(kv_remove(NULL, &key, 1));
    CHECK_REFUSED(kv_wait(NULL, 1, 0));
    CHECK_REFUSED(kv_wait_all(NULL, 0));
    CHECK_REFUSED(kv_cancel(NULL, 1));
    CHECK_REFUSED(kv_on_done(NULL, 1, NULL, NULL, NULL));
    CHECK_REFUSED(kv_watch(NULL, 1));
    CHECK_REFUSED(kv_next_done(NULL, NULL, NULL));
    CHECK_REFUSED(kv_event_fd(NULL, NULL));
    CHECK_REFUSED(kv_save(NULL, "file"));
    CHECK_REFUSED(kv_load(NULL, "file"));
    CHECK_REFUSED(kv_load_values(NULL, "file", same_name, NULL));
    CHECK_REFUSED(kv_set_updater(NULL, add_number, NULL, NULL));
    CHECK_REFUSED(kv_set_updater(NULL, NULL, NULL, NULL));
    CHECK(ticket == UNTOUCHED && number == 1 && key == 1 && text == NULL);
    kv_abort(NULL);
    kv_free(NULL);
}

static void without_a_place_for_the_answer(kv_store *store) {
    int64_t shape[4];
    kv_key keys[4];
    CHECK_REFUSED(kv_create("local", NULL, NULL));
    CHECK_REFUSED(kv_type(store, NULL));
    CHECK_REFUSED(kv_role(store, NULL));
    CHECK_REFUSED(kv_rank(store, NULL));
    CHECK_REFUSED(kv_num_workers(store, NULL));
    CHECK_REFUSED(kv_num_lost(store, NULL));
    CHECK_REFUSED(kv_group(store, "g", &(int32_t){0}, 1, NULL));
    CHECK_REFUSED(kv_group(store, NULL, &(int32_t){0}, 1, &(kv_store *){NULL}));
    CHECK_REFUSED(kv_group(store, "g", NULL, 1, &(kv_store *){NULL}));
    CHECK_REFUSED(kv_intern(store, "name", NULL));
    CHECK_REFUSED(kv_key_name(store, 1, NULL));
    CHECK_REFUSED(kv_key_info(store, 1, NULL, NULL, NULL, 4));
    CHECK_STATUS(kv_key_info(store, 1, NULL, NULL, shape, 4), KV_OK);
    CHECK_REFUSED(kv_key_device(store, 1, NULL));
    CHECK_REFUSED(kv_bind(store, NULL, NULL, 0, NULL, NULL, 0, NULL));
    CHECK_REFUSED(kv_stream((kv_device){KV_CUDA, 0}, NULL));
    CHECK_REFUSED(kv_keys(store, keys, 4, NULL));
    CHECK_REFUSED(kv_digest(store, NULL, &(kv_key_digest){0, 0, 0}, 1));
    CHECK_REFUSED(kv_set_optimizer_for(store, NULL, 1, "sgd", NULL));
    CHECK_REFUSED(kv_digest(store, &(kv_key){1}, NULL, 1));
    CHECK_REFUSED(kv_keys(store, NULL, 4, &(size_t){0}));
    CHECK_REFUSED(kv_stats(store, NULL, 100, NULL));
}

static void without_a_text(kv_store *store) {
    kv_store *untouched = store;
    kv_key key = 5;
    CHECK_REFUSED(kv_create(NULL, NULL, &untouched));
    CHECK_REFUSED(kv_intern(store, NULL, &key));
    CHECK_REFUSED(kv_save(store, NULL));
    CHECK_REFUSED(kv_load(store, NULL));
    CHECK_REFUSED(kv_load_values(store, NULL, same_name, NULL));
    CHECK_REFUSED(kv_load_values(store, "file", NULL, NULL));
    CHECK_REFUSED(kv_set_optimizer_for(store, &key, 1, NULL, NULL));
    CHECK(untouched == store && key == 5);
    kv_set_callback_error(NULL);
}

static void without_one_of_the_arrays(kv_store *store) {
    int64_t number = 7;
    kv_tensor tensor = number_tensor(&number);
    kv_key key = 1, fresh = 2;
    kv_ticket ticket = UNTOUCHED;
    CHECK_REFUSED(kv_init(store, NULL, &tensor, 1));
    CHECK_REFUSED(kv_init(store, &fresh, NULL, 1));
    CHECK_REFUSED(kv_push(store, NULL, &tensor, 1, 0, NULL));
    CHECK_REFUSED(kv_push(store, &key, NULL, 1, 0, NULL));
    CHECK_REFUSED(kv_push(store, NULL, NULL, 1, 0, &ticket));
    CHECK_REFUSED(kv_pull(store, NULL, &tensor, 1, 0, NULL));
    CHECK_REFUSED(kv_pull(store, &key, NULL, 1, 0, NULL));
    CHECK_REFUSED(kv_pull(store, NULL, NULL, 1, 0, &ticket));
    CHECK_REFUSED(kv_pushpull(store, NULL, &tensor, 1, &key, &tensor, 1, 0, NULL));
    CHECK_REFUSED(kv_pushpull(store, &key, NULL, 1, &key, &tensor, 1, 0, NULL));
    CHECK_REFUSED(kv_pushpull(store, &key, &tensor, 1, NULL, &tensor, 1, 0, NULL));
    CHECK_REFUSED(kv_pushpull(store, &key, &tensor, 1, &key, NULL, 1, 0, &ticket));
    CHECK_REFUSED(kv_broadcast(store, NULL, &tensor, 1, &key, &tensor, 1, 0, NULL));
    CHECK_REFUSED(kv_broadcast(store, &fresh, NULL, 1, &key, &tensor, 1, 0, NULL));
    CHECK_REFUSED(kv_broadcast(store, &fresh, &tensor, 1, NULL, &tensor, 1, 0, NULL));
    CHECK_REFUSED(kv_broadcast(store, &fresh, &tensor, 1, &key, NULL, 1, 0, &ticket));
    CHECK_REFUSED(kv_push_rows(store, NULL, &tensor, &tensor, 1, 0, NULL));
    CHECK_REFUSED(kv_push_rows(store, &key, NULL, &tensor, 1, 0, &ticket));
    CHECK_REFUSED(kv_push_rows(store, &key, &tensor, NULL, 1, 0, NULL));
    CHECK_REFUSED(kv_pull_rows(store, NULL, &tensor, &tensor, 1, 0, NULL));
    CHECK_REFUSED(kv_pull_rows(store, &key, NULL, &tensor, 1, 0, &ticket));
    CHECK_REFUSED(kv_pull_rows(store, &key, &tensor, NULL, 1, 0, NULL));
    kv_bound *bound = NULL;
    CHECK_REFUSED(kv_bind(store, NULL, &tensor, 1, &key, &tensor, 1, &bound));
    CHECK_REFUSED(kv_bind(store, &key, NULL, 1, &key, &tensor, 1, &bound));
    CHECK_REFUSED(kv_bind(store, &key, &tensor, 1, NULL, &tensor, 1, &bound));
    CHECK_REFUSED(kv_bind(store, &key, &tensor, 1, &key, NULL, 1, &bound));
    CHECK(bound == NULL);
    CHECK_REFUSED(kv_remove(store, NULL, 1));
    CHECK(ticket == UNTOUCHED && number == 7);
}

/* Where NULL has a meaning it is not refused. */
static void null_where_it_is_allowed(kv_store *store) {
    size_t size = 0;
    CHECK_STATUS(kv_key_info(store, 1, NULL, NULL, NULL, 0), KV_OK);
    CHECK_STATUS(kv_keys(store, NULL, 0, &size), KV_OK);
    CHECK(size == 1);
    CHECK_STATUS(kv_stats(store, NULL, 0, NULL), KV_OK);
    CHECK_STATUS(kv_digest(store, NULL, NULL, 0), KV_OK);
    CHECK_STATUS(kv_set_updater(store, NULL, NULL, NULL), KV_OK);
    CHECK_STATUS(kv_set_logger(KV_LOG_OFF, NULL, NULL, NULL), KV_OK);
    CHECK_STATUS(kv_remove(store, NULL, 0), KV_OK);
}

int main(void) {
    without_a_config();
    without_a_store();
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        kv_store *store = open_store(STORE_TYPES[i]);
        init_number(store, 1, 10);
        without_a_place_for_the_answer(store);
        without_a_text(store);
        without_one_of_the_arrays(store);
        null_where_it_is_allowed(store);
        CHECK(pull_number(store, 1) == 10);
        kv_free(store);
    }
    return check_passed("api_null");
}
