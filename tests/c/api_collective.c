/* kv_allreduce, kv_reduce, kv_reduce_scatter, kv_broadcast_from, kv_allgather, kv_gather, kv_scatter,
   kv_all_to_all in a local store, which is all the workers there are. */
#include "collectives.h"

enum { COUNT = 1500 };

static float numbers[4][COUNT];
static int64_t shape[1] = {COUNT};

/* Numbers whose sums depend on their order. */
static void fill(void) {
    for (int array = 0; array < 4; array++) {
        for (int at = 0; at < COUNT; at++) {
            numbers[array][at] = (float)((array * 7919 + at * 104729) % 16777213) / 257.0f - 300.0f;
        }
    }
}

static kv_tensor floats(float *data) { return kv_tensor_cpu(data, KV_F32, 1, shape); }

static void check_reductions(kv_store *store) {
    float out[2][COUNT];
    kv_tensor values[3] = {floats(numbers[0]), floats(numbers[1]), floats(numbers[2])};
    kv_tensor outs[2] = {floats(out[0]), floats(out[1])};
    for (int32_t op = KV_SUM; op <= KV_MIN; op++) {
        CHECK_STATUS(kv_allreduce(store, op, values, 3, outs, 2, NULL), KV_OK);
        for (int at = 0; at < COUNT; at++) {
            float a = numbers[0][at], b = numbers[1][at], c = numbers[2][at];
            float larger = b > a ? b : a, smaller = b < a ? b : a;
            float wanted[4] = {a + b + c, (a + b + c) / 3, c > larger ? c : larger,
                               c < smaller ? c : smaller};
            CHECK(out[0][at] == wanted[op] && out[1][at] == wanted[op]);
        }
        CHECK_STATUS(kv_reduce(store, op, 0, values, 3, outs, 1, NULL), KV_OK);
        CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0);
    }
    /* In place, and with a ticket. */
    kv_ticket ticket = 0;
    memcpy(out[0], numbers[3], sizeof out[0]);
    kv_tensor both[2] = {outs[0], values[0]};
    CHECK_STATUS(kv_allreduce(store, KV_SUM, both, 2, outs, 1, &ticket), KV_OK);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    for (int at = 0; at < COUNT; at++) {
        CHECK(out[0][at] == numbers[3][at] + numbers[0][at]);
    }
    CHECK_STATUS(kv_allreduce(store, KV_SUM, values, 1, NULL, 0, NULL), KV_OK);
}

static void check_moves(kv_store *store) {
    float out[COUNT];
    kv_tensor value = floats(numbers[1]), place = floats(out);
    memset(out, 0, sizeof out);
    CHECK_STATUS(kv_reduce_scatter(store, KV_MEAN, &value, 1, &place, NULL), KV_OK);
    CHECK(memcmp(out, numbers[1], sizeof out) == 0);
    memset(out, 0, sizeof out);
    kv_tensor tensors[2] = {value, place};
    CHECK_STATUS(kv_broadcast_from(store, 0, tensors, 2, NULL), KV_OK);
    CHECK(memcmp(out, numbers[1], sizeof out) == 0);
    memset(out, 0, sizeof out);
    CHECK_STATUS(kv_allgather(store, &value, &place, 1, NULL), KV_OK);
    CHECK(memcmp(out, numbers[1], sizeof out) == 0);
    memset(out, 0, sizeof out);
    CHECK_STATUS(kv_gather(store, 0, &value, &place, 1, NULL), KV_OK);
    CHECK(memcmp(out, numbers[1], sizeof out) == 0);
    memset(out, 0, sizeof out);
    CHECK_STATUS(kv_scatter(store, 0, &value, 1, &place, NULL), KV_OK);
    CHECK(memcmp(out, numbers[1], sizeof out) == 0);
    memset(out, 0, sizeof out);
    CHECK_STATUS(kv_all_to_all(store, &value, 1, &place, 1, NULL), KV_OK);
    CHECK(memcmp(out, numbers[1], sizeof out) == 0);
}

static void check_refusals(kv_store *store) {
    float out[COUNT] = {0};
    int64_t shorter[1] = {COUNT - 1}, whole[2] = {1, 2};
    kv_tensor value = floats(numbers[0]), place = floats(out);
    kv_tensor other = kv_tensor_cpu(numbers[1], KV_F32, 1, shorter);
    kv_tensor integers = kv_tensor_cpu(whole, KV_I64, 1, (int64_t[1]){2});
    kv_tensor opaque = kv_tensor_cpu(numbers[1], KV_C64, 1, (int64_t[1]){4});
    kv_tensor gpu = value;
    gpu.device.type = KV_CUDA;
    kv_tensor different[2] = {value, other}, mixed[2] = {value, integers};
    kv_tensor twice[2] = {place, place};
    CHECK_STATUS(kv_allreduce(store, KV_SUM, different, 2, &place, 1, NULL), KV_ERR_SHAPE_MISMATCH);
    CHECK_STATUS(kv_allreduce(store, KV_SUM, &value, 1, &other, 1, NULL), KV_ERR_SHAPE_MISMATCH);
    CHECK_STATUS(kv_allreduce(store, KV_SUM, mixed, 2, &place, 1, NULL), KV_ERR_DTYPE_MISMATCH);
    CHECK_STATUS(kv_allreduce(store, KV_SUM, &value, 1, twice, 2, NULL), KV_ERR_OVERLAP);
    CHECK_STATUS(kv_allreduce(store, KV_MEAN, &integers, 1, NULL, 0, NULL), KV_ERR_UNSUPPORTED);
    CHECK_STATUS(kv_allreduce(store, KV_SUM, &opaque, 1, NULL, 0, NULL), KV_ERR_UNSUPPORTED);
    CHECK_STATUS(kv_allreduce(store, KV_SUM, &gpu, 1, &place, 1, NULL), KV_ERR_UNSUPPORTED);
    CHECK_STATUS(kv_allreduce(store, KV_SUM, NULL, 0, &place, 1, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_allreduce(store, 4, &value, 1, &place, 1, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_allreduce(store, -1, &value, 1, &place, 1, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_reduce(store, KV_SUM, 1, &value, 1, &place, 1, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_gather(store, -1, &value, &place, 1, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_allgather(store, &value, twice, 2, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_broadcast_from(store, 0, &value, 0, NULL), KV_ERR_INVALID_ARGUMENT);
    for (int at = 0; at < COUNT; at++) {
        CHECK(out[at] == 0);
    }
    CHECK_STATUS(kv_broadcast_from(store, 0, &opaque, 1, NULL), KV_OK);
}

int main(void) {
    alarm_after_minutes(2);
    fill();
    kv_store *store = open_store("local");
    check_reductions(store);
    check_moves(store);
    check_refusals(store);
    CHECK_STATUS(kv_close(store, WAIT_MS), KV_OK);
    kv_free(store);
    return 0;
}
