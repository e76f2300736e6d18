/* kv_set_interrupt during kv_serve: the scheduler of a job that does not start. */
#include "support.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

static int asked = 0;

static int32_t end_at_the_second_question(void *context) {
    (void)context;
    asked++;
    return asked == 2;
}

/* An address on the loopback whose port was free. */
static const char *free_address(void) {
    static char address[32];
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof place;
    int probe = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(probe >= 0 && bind(probe, (struct sockaddr *)&place, size) == 0);
    CHECK(getsockname(probe, (struct sockaddr *)&place, &size) == 0);
    CHECK(close(probe) == 0);
    snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(place.sin_port));
    return address;
}

static kv_status open_scheduler(kv_store **store) {
    kv_config *config = NULL;
    CHECK_STATUS(kv_config_create(&config), KV_OK);
    CHECK_STATUS(kv_config_set(config, "role", "scheduler"), KV_OK);
    CHECK_STATUS(kv_config_set(config, "root", free_address()), KV_OK);
    CHECK_STATUS(kv_config_set(config, "num_workers", "1"), KV_OK);
    CHECK_STATUS(kv_config_set(config, "num_servers", "1"), KV_OK);
    kv_status status = kv_create("dist_sync", config, store);
    kv_config_free(config);
    return status;
}

int main(void) {
    kv_store *store = NULL;
    alarm_after_minutes(5);
    kv_status status = open_scheduler(&store);
    if (status == KV_ERR_UNSUPPORTED) { /* a library without distributed stores */
        return check_passed("api_interrupt_serve");
    }
    CHECK_STATUS(status, KV_OK);
    CHECK_STATUS(kv_set_interrupt(end_at_the_second_question, NULL), KV_OK);
    CHECK_STATUS(kv_serve(store), KV_ERR_CANCELLED);
    CHECK(error_says("interrupted"));
    CHECK(asked == 2);
    /* A store serves once: this waits for nothing. */
    asked = 0;
    CHECK_STATUS(kv_serve(store), KV_ERR_INVALID_ARGUMENT);
    CHECK(asked == 0);
    CHECK_STATUS(kv_set_interrupt(NULL, NULL), KV_OK);
    kv_free(store);
    return check_passed("api_interrupt_serve");
}
