/* A worker of the tests of many processes: 20 rounds of one value; each must be the sum of all workers. */
#include <kvstore.h>
#include <stdio.h>
#include <stdlib.h>

#define TRY(call)                                                                       \
    do {                                                                                \
        kv_status status = (call);                                                      \
        if (status != KV_OK) {                                                          \
            printf("error %s\n", kv_last_error());                                      \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

enum { ROUNDS = 20, WAIT_MS = 60000 };

int main(void) {
    kv_store *store = NULL;
    kv_key key = 3;
    int32_t rank = 0, workers = 0;
    const char *told = getenv("KV_TEST_COUNT");
    int64_t count = told != NULL ? atoll(told) : 256, shape[] = {count};
    float *pushed = calloc((size_t)count, sizeof(float));
    float *pulled = calloc((size_t)count, sizeof(float));
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (pushed == NULL || pulled == NULL) {
        return 2;
    }
    TRY(kv_create("dist_sync", NULL, &store));
    TRY(kv_rank(store, &rank));
    TRY(kv_num_workers(store, &workers));
    printf("ready\n");
    kv_tensor value = kv_tensor_cpu(pushed, KV_F32, 1, shape);
    kv_tensor out = kv_tensor_cpu(pulled, KV_F32, 1, shape);
    TRY(kv_init(store, &key, &out, 1));
    for (int round = 1; round <= ROUNDS; round++) {
        /* Whole numbers below 2^24, which float32 adds without rounding. */
        float expected = (float)(round * workers + workers * (workers - 1) / 2);
        for (int64_t i = 0; i < count; i++) {
            pushed[i] = (float)(round + rank);
        }
        TRY(kv_push(store, &key, &value, 1, 0, NULL));
        TRY(kv_pull(store, &key, &out, 1, 0, NULL));
        for (int64_t i = 0; i < count; i++) {
            if (pulled[i] != expected) {
                printf("error round %d: element %lld is %f, not %f\n", round, (long long)i,
                       (double)pulled[i], (double)expected);
                return 3;
            }
        }
        printf("round %d\n", round);
    }
    TRY(kv_barrier(store, WAIT_MS));
    TRY(kv_close(store, WAIT_MS));
    kv_free(store);
    printf("closed\n");
    return 0;
}
