/* kv_set_interrupt during kv_create: a job that does not start has no store yet. */
#include "support.h"

static int asked = 0;

static int32_t end_at_the_second_question(void *context) {
    (void)context;
    asked++;
    return asked == 2;
}

int main(void) {
    kv_config *config = NULL;
    kv_store *store = NULL;
    alarm_after_minutes(5);
    CHECK_STATUS(kv_config_create(&config), KV_OK);
    CHECK_STATUS(kv_config_set(config, "root", "127.0.0.1:9"), KV_OK);
    CHECK_STATUS(kv_config_set(config, "num_workers", "1"), KV_OK);
    CHECK_STATUS(kv_config_set(config, "num_servers", "1"), KV_OK);
    CHECK_STATUS(kv_set_interrupt(end_at_the_second_question, NULL), KV_OK);
    kv_status status = kv_create("dist_sync", config, &store);
    CHECK(status == KV_ERR_CANCELLED || status == KV_ERR_UNSUPPORTED);
    CHECK(store == NULL);
    CHECK_STATUS(kv_set_interrupt(NULL, NULL), KV_OK);
    kv_config_free(config);
    return 0;
}
