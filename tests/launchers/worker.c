/*
 * A worker, or whatever this process is in its job, as a launcher of a site starts it.
 *
 *   worker FOLDER [RANK]   three rounds; each process writes FOLDER/<role>-<rank> with what it met.
 *                          The worker with this RANK kills itself behind the first round.
 */
#include <kvstore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ELEMENTS = 5000, ROUNDS = 3, WAIT_MS = 20000 };

static FILE *report;

static void check(kv_status status, const char *call) {
    if (status != KV_OK) {
        fprintf(report != NULL ? report : stderr, "%s: %s: %s\n", call, kv_status_name(status),
                kv_last_error());
        fflush(NULL);
        /* The launcher may end the others when this one ends, and their reports are wanted. */
        sleep(1);
        _exit(3);
    }
}

static void work(kv_store *store, int32_t rank, int32_t dies) {
    const kv_key key = 1;
    int64_t shape[] = {ELEMENTS};
    static float pushed[ELEMENTS];
    static float value[ELEMENTS];
    kv_tensor pushes = kv_tensor_cpu(pushed, KV_F32, 1, shape);
    kv_tensor values = kv_tensor_cpu(value, KV_F32, 1, shape);
    check(kv_init(store, &key, &values, 1), "kv_init");
    for (int round = 0; round < ROUNDS; round++) {
        if (round == 1 && rank == dies) {
            raise(SIGKILL);
        }
        for (int i = 0; i < ELEMENTS; i++) {
            pushed[i] = (float)(rank + 1) / (float)(i + round + 1);
        }
        check(kv_push(store, &key, &pushes, 1, 0, NULL), "kv_push");
        check(kv_pull(store, &key, &values, 1, 0, NULL), "kv_pull");
        fprintf(report, "%a %a\n", (double)value[0], (double)value[ELEMENTS - 1]);
    }
}

int main(int argc, char **argv) {
    static const char *const roles[] = {[KV_ROLE_WORKER] = "worker", [KV_ROLE_SERVER] = "server",
                                        [KV_ROLE_SCHEDULER] = "scheduler"};
    kv_store *store = NULL;
    int32_t role = 0;
    int32_t rank = 0;
    int32_t workers = 0;
    char name[4096];
    if (argc < 2) {
        return 2;
    }
    check(kv_create("dist_sync", NULL, &store), "kv_create");
    check(kv_role(store, &role), "kv_role");
    check(kv_rank(store, &rank), "kv_rank");
    check(kv_num_workers(store, &workers), "kv_num_workers");
    snprintf(name, sizeof name, "%s/%s-%d", argv[1], roles[role], (int)rank);
    report = fopen(name, "w");
    if (report == NULL) {
        return 2;
    }
    fprintf(report, "%d workers\n", (int)workers);
    fflush(report);
    if (role == KV_ROLE_WORKER) {
        work(store, rank, argc > 2 ? atoi(argv[2]) : -1);
    } else {
        check(kv_serve(store), "kv_serve");
    }
    check(kv_close(store, WAIT_MS), "kv_close");
    kv_free(store);
    return fclose(report) == 0 ? 0 : 1;
}
