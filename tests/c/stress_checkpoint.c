/* Processes that save all the time and are killed: what is at the path is always one whole file. */
#include "files.h"

#include <signal.h>
#include <sys/wait.h>

enum { KEYS = 4, COUNT = 60000 };

static const char *path;
static float data[COUNT];

static kv_tensor floats(void) {
    static int64_t shape[] = {COUNT};
    return kv_tensor_cpu(data, KV_F32, 1, shape);
}

static kv_store *open_loaded(void) {
    kv_store *store = open_store("local");
    CHECK_STATUS(kv_load(store, path), KV_OK);
    return store;
}

/* Adds 1 to every element of every key, then saves, for ever. */
static void save_for_ever(void) {
    kv_store *store = open_loaded();
    kv_tensor value = floats();
    for (int i = 0; i < COUNT; i++) {
        data[i] = 1;
    }
    for (;;) {
        for (kv_key key = 0; key < KEYS; key++) {
            CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL), KV_OK);
        }
        CHECK_STATUS(kv_save(store, path), KV_OK);
    }
}

/* What all elements of all keys of the file are. */
static float check_whole(void) {
    kv_store *store = open_loaded();
    kv_tensor out = floats();
    float first = -1;
    int equal = 0;
    for (kv_key key = 0; key < KEYS; key++) {
        CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
        first = key == 0 ? data[0] : first;
        for (int i = 0; i < COUNT; i++) {
            equal += data[i] == first;
        }
    }
    CHECK(equal == KEYS * COUNT);
    kv_free(store);
    return first;
}

static void kill_after(long microseconds) {
    struct timespec time = {0, microseconds * 1000};
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm_after_minutes(1);
        save_for_ever();
    }
    nanosleep(&time, NULL);
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

int main(void) {
    alarm_after_minutes(10);
    path = new_folder("file");
    kv_store *store = open_store("local");
    kv_tensor value = floats();
    long kills = scaled(20, 3);
    unsigned seed = (unsigned)now_ms();
    int left = 0;
    for (kv_key key = 0; key < KEYS; key++) {
        CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    }
    CHECK_STATUS(kv_set_optimizer(store, "test", NULL), KV_OK);
    CHECK_STATUS(kv_save(store, path), KV_OK);
    float before = 0;
    for (long i = 0; i < kills; i++) {
        kill_after((long)(rand_r(&seed) % 40000));
        float now = check_whole();
        CHECK(now >= before);
        before = now;
        /* What one process left behind the next has removed, if it came so far. */
        CHECK(count_files() <= 2);
        left += count_files() - 1;
    }
    printf("stress_checkpoint: %d saves, %d files left behind by %ld kills\n", (int)before, left,
           kills);
    CHECK_STATUS(kv_save(store, path), KV_OK);
    CHECK(count_files() == 1);
    CHECK(check_whole() == 0);
    kv_free(store);
    CHECK(unlink(path) == 0);
    remove_folder();
    return check_passed("stress_checkpoint");
}
