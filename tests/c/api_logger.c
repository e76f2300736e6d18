/* kv_set_logger: what is said at which level, and when the context ends. */
#include "support.h"

/* What a logger has heard; lines may come from any thread. */
typedef struct journal {
    pthread_mutex_t lock;
    int lines[KV_LOG_DEBUG + 1];
    char last[512];
    int drops;
} journal;

#define EMPTY_JOURNAL {PTHREAD_MUTEX_INITIALIZER, {0}, "", 0}

static void write_down(void *context, int32_t level, const char *message) {
    journal *notes = context;
    CHECK(level >= KV_LOG_ERROR && level <= KV_LOG_DEBUG);
    CHECK(message != NULL && *message != 0);
    CHECK(strchr(message, '\n') == NULL);
    pthread_mutex_lock(&notes->lock);
    notes->lines[level]++;
    snprintf(notes->last, sizeof notes->last, "%s", message);
    pthread_mutex_unlock(&notes->lock);
}

static void drop_journal(void *context) {
    ((journal *)context)->drops++;
}

static int lines_of(const journal *notes) {
    int sum = 0;
    for (int level = 0; level <= KV_LOG_DEBUG; level++) {
        sum += notes->lines[level];
    }
    return sum;
}

/* A store that lives, changes keys, and leaves a failure that nobody is told of. */
static void make_noise(void) {
    kv_store *store = open_with("timeout_ms", "5000");
    gate at = GATE_CLOSED;
    int64_t number = 1;
    kv_key key = 2;
    init_number(store, 1, 0);
    init_number(store, 2, 0);
    CHECK_STATUS(kv_remove(store, &key, 1), KV_OK);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    send_number(store, 1, &number, 0);
    gate_await(&at, 1);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    send_number(store, 1, &number, 0);
    gate_open(&at);
    kv_free(store); /* maybe with the second push pending */
}

static void silence_is_the_default(void) {
    journal notes = EMPTY_JOURNAL;
    make_noise();
    CHECK_STATUS(kv_set_logger(KV_LOG_OFF, write_down, &notes, drop_journal), KV_OK);
    make_noise();
    CHECK(lines_of(&notes) == 0);
    CHECK_STATUS(kv_set_logger(KV_LOG_DEBUG, NULL, NULL, NULL), KV_OK);
    CHECK(notes.drops == 1);
    make_noise();
}

/* Each level includes those before it and nothing else. */
static void levels_include_those_before(void) {
    int heard[KV_LOG_DEBUG + 1] = {0};
    for (int32_t level = KV_LOG_ERROR; level <= KV_LOG_DEBUG; level++) {
        journal notes = EMPTY_JOURNAL;
        CHECK_STATUS(kv_set_logger(level, write_down, &notes, drop_journal), KV_OK);
        make_noise();
        CHECK_STATUS(kv_set_logger(KV_LOG_OFF, NULL, NULL, NULL), KV_OK);
        CHECK(notes.drops == 1);
        for (int above = level + 1; above <= KV_LOG_DEBUG; above++) {
            CHECK(notes.lines[above] == 0);
        }
        heard[level] = notes.lines[level];
    }
    CHECK(heard[KV_LOG_ERROR] == 0);
    CHECK(heard[KV_LOG_INFO] >= 1);  /* a store opened */
    CHECK(heard[KV_LOG_DEBUG] >= 2); /* keys, updaters */
}

static kv_status always_fail(void *context, kv_key key, const kv_tensor *input,
                             const kv_tensor *stored) {
    (void)context;
    (void)key;
    (void)input;
    (void)stored;
    return KV_ERR_UNSUPPORTED;
}

/* A failure that nobody waited for is lost with its store: that is worth a warning. */
static void a_lost_failure_is_a_warning(void) {
    journal notes = EMPTY_JOURNAL;
    int64_t number = 1, got = 0;
    CHECK_STATUS(kv_set_logger(KV_LOG_WARN, write_down, &notes, drop_journal), KV_OK);
    kv_store *store = open_store("local");
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, always_fail, NULL, NULL), KV_OK);
    send_number(store, 1, &number, 0);
    kv_ticket after = ask_number(store, 1, &got);
    CHECK_STATUS(kv_wait(store, after, WAIT_MS), KV_OK);
    kv_free(store);
    CHECK(notes.lines[KV_LOG_WARN] >= 1);
    CHECK(strlen(notes.last) > 0);

    int before = lines_of(&notes);
    store = open_store("local");
    init_number(store, 1, 0);
    CHECK_STATUS(push_number(store, 1, 1), KV_OK);
    kv_free(store);
    CHECK(lines_of(&notes) == before);
    CHECK_STATUS(kv_set_logger(KV_LOG_OFF, NULL, NULL, NULL), KV_OK);
}

static void contexts_end_exactly_once(void) {
    journal notes[4] = {EMPTY_JOURNAL, EMPTY_JOURNAL, EMPTY_JOURNAL, EMPTY_JOURNAL};
    CHECK_STATUS(kv_set_logger(-1, write_down, &notes[0], drop_journal),
                 KV_ERR_INVALID_ARGUMENT);
    CHECK(notes[0].drops == 1);
    CHECK_STATUS(kv_set_logger(KV_LOG_DEBUG + 1, write_down, &notes[1], drop_journal),
                 KV_ERR_INVALID_ARGUMENT);
    CHECK(notes[1].drops == 1);
    CHECK_STATUS(kv_set_logger(KV_LOG_INFO, write_down, &notes[2], drop_journal), KV_OK);
    CHECK_STATUS(kv_set_logger(99, NULL, NULL, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK(notes[2].drops == 0); /* a refused call changes nothing */
    kv_free(open_store("local"));
    CHECK(notes[2].lines[KV_LOG_INFO] >= 1);
    CHECK_STATUS(kv_set_logger(KV_LOG_INFO, NULL, &notes[3], drop_journal), KV_OK);
    CHECK(notes[2].drops == 1);
    CHECK_STATUS(kv_set_logger(KV_LOG_OFF, NULL, NULL, NULL), KV_OK);
    for (int i = 0; i < 4; i++) {
        CHECK(notes[i].drops == 1);
    }
}

int main(void) {
    alarm_after_minutes(5);
    silence_is_the_default();
    levels_include_those_before();
    a_lost_failure_is_a_warning();
    contexts_end_exactly_once();
    return check_passed("api_logger");
}
