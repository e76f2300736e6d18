/*
 * Five rounds of pushes and pulls, in one process or in a job of many. Only the type differs:
 *
 *   rounds                     one process, the only worker
 *   rounds dist_sync           one process of a job; `kvstore run` starts them all:
 *                              kvstore run -n 4 -s 2 --serve-with-program -- rounds dist_sync
 *
 * In each round every worker pushes its rank + 1. The servers add up what the n workers push, and
 * add the sum to the value: after round i it is 1 + i * n * (n + 1) / 2.
 */
#include <kvstore.h>
#include <stdio.h>
#include <stdlib.h>

#include "try.h"

enum { ROWS = 2, COLUMNS = 3, ELEMENTS = ROWS * COLUMNS, ROUNDS = 5, WAIT_MS = 60000 };

static void fill(float *elements, float value) {
    for (int i = 0; i < ELEMENTS; i++) {
        elements[i] = value;
    }
}

static void work(kv_store *store) {
    const kv_key key = 3;
    int64_t shape[] = {ROWS, COLUMNS};
    float weight[ELEMENTS];
    float gradient[ELEMENTS];
    kv_tensor value = kv_tensor_cpu(weight, KV_F32, 2, shape);
    kv_tensor pushed = kv_tensor_cpu(gradient, KV_F32, 2, shape);
    int32_t rank = 0;
    TRY(kv_rank(store, &rank));
    fill(weight, 1);
    fill(gradient, (float)rank + 1);

    /* All workers make the same calls. A rule of the library runs where the values are. */
    TRY(kv_set_optimizer(store, "test", "rescale_grad=1"));
    TRY(kv_init(store, &key, &value, 1));
    for (int round = 1; round <= ROUNDS; round++) {
        TRY(kv_push(store, &key, &pushed, 1, 0, NULL));
        /* Waits until the pushes of all workers in this round are in the value. */
        TRY(kv_pull(store, &key, &value, 1, 0, NULL));
        if (rank == 0) {
            printf("after round %d: %.1f\n", round, (double)weight[0]);
        }
    }
    TRY(kv_barrier(store, WAIT_MS));
}

int main(int argc, char **argv) {
    kv_store *store = NULL;
    int32_t role = KV_ROLE_WORKER;
    TRY(kv_create(argc > 1 ? argv[1] : "local", NULL, &store));
    TRY(kv_role(store, &role));
    if (role == KV_ROLE_WORKER) {
        work(store);
    } else {
        TRY(kv_serve(store)); /* until all workers have closed their stores */
    }
    TRY(kv_close(store, WAIT_MS));
    kv_free(store);
    return EXIT_SUCCESS;
}
