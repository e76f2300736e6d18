/* Times kv_allreduce of float32 among the workers of a job; worker 0 prints bytes and microseconds, the median. */
#include "timing.h"

#include <kvstore.h>

#define TRY(call) \
    do { \
        if ((call) != KV_OK) { \
            fprintf(stderr, "%s: %s\n", #call, kv_last_error()); \
            exit(1); \
        } \
    } while (0)

static kv_store *store;
static kv_tensor value, result;

static void exchange(void) { TRY(kv_allreduce(store, KV_SUM, &value, 1, &result, 1, NULL)); }

int main(void) {
    int32_t rank, workers;
    TRY(kv_create("dist_sync", NULL, &store));
    TRY(kv_rank(store, &rank));
    TRY(kv_num_workers(store, &workers));
    for (size_t i = 0; i < SIZES; i++) {
        int64_t shape[1] = {(int64_t)counts[i]};
        float *from = values(rank, counts[i]), *to = values(0, counts[i]);
        value = kv_tensor_cpu(from, KV_F32, 1, shape);
        result = kv_tensor_cpu(to, KV_F32, 1, shape);
        double median = time_of(exchange, counts[i]);
        check(to, workers, counts[i]);
        if (rank == 0) {
            printf("%zu %.2f\n", counts[i] * sizeof(float), median);
        }
        free(from);
        free(to);
    }
    TRY(kv_close(store, 60000));
    kv_free(store);
    return 0;
}
