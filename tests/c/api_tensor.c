/* Tensors that are refused, whichever call they come to, and odd ones that are not. */
#include "numbers.h"
#include "support.h"

/* A request that cannot be met gives NULL under AddressSanitizer too, as malloc says. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

/* A tensor of float32 zeros that all calls accept: key 1 has its shape. */
static float zeros[64];
static int64_t shape_2_3[] = {2, 3};

static kv_tensor good_tensor(void) {
    return kv_tensor_cpu(zeros, KV_F32, 2, shape_2_3);
}

/* As a first value, a value, an out, and in calls of two lists: the same status everywhere. */
static void check_refused(kv_store *store, kv_tensor tensor, kv_status wanted) {
    kv_key key = 1, fresh = 2;
    kv_tensor good = good_tensor();
    kv_ticket ticket = UNTOUCHED;
    size_t count = 0;
    CHECK_STATUS(kv_init(store, &fresh, &tensor, 1), wanted);
    CHECK(error_says("init"));
    CHECK(error_says("key 2"));
    CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, NULL), wanted);
    CHECK(error_says("key 1"));
    CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, &ticket), wanted);
    CHECK_STATUS(kv_pull(store, &key, &tensor, 1, 0, NULL), wanted);
    CHECK(error_says("key 1"));
    CHECK_STATUS(kv_pushpull(store, &key, &tensor, 1, &key, &good, 1, 0, NULL), wanted);
    CHECK_STATUS(kv_pushpull(store, &key, &good, 1, &key, &tensor, 1, 0, &ticket), wanted);
    CHECK_STATUS(kv_broadcast(store, &fresh, &tensor, 1, &key, &good, 1, 0, NULL), wanted);
    CHECK_STATUS(kv_broadcast(store, &fresh, &good, 1, &key, &tensor, 1, 0, NULL), wanted);
    CHECK_STATUS(kv_keys(store, NULL, 0, &count), KV_OK);
    CHECK(count == 1 && ticket == UNTOUCHED);
}

static void dimensions_are_checked(kv_store *store) {
    int64_t negative[] = {2, -3}, lowest[] = {INT64_MIN, 1};
    kv_tensor tensor = good_tensor();
    tensor.ndim = -1;
    check_refused(store, tensor, KV_ERR_INVALID_ARGUMENT);
    tensor.ndim = INT32_MIN;
    check_refused(store, tensor, KV_ERR_INVALID_ARGUMENT);
    tensor = good_tensor();
    tensor.shape = NULL;
    check_refused(store, tensor, KV_ERR_INVALID_ARGUMENT);
    tensor.shape = negative;
    check_refused(store, tensor, KV_ERR_INVALID_ARGUMENT);
    tensor.shape = lowest;
    check_refused(store, tensor, KV_ERR_INVALID_ARGUMENT);
}

/* Sizes and strides that no memory can hold, also where a product wraps around to a small one. */
static void overflows_are_seen(kv_store *store) {
    static int64_t shapes[][4] = {
        {INT64_MAX, INT64_MAX, 1, 1},
        {(int64_t)1 << 32, (int64_t)1 << 32, 1, 1},
        {((int64_t)1 << 62) + 1, 4, 1, 1},
        {(int64_t)1 << 62, 1, 1, 1}, /* elements fit, bytes do not */
        {INT64_MAX, 1, 1, 1},
    };
    static int64_t strides[][2] = {
        {INT64_MAX, 1}, {INT64_MIN, 1}, {1, INT64_MAX / 2}, {(int64_t)1 << 61, (int64_t)1 << 61},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        kv_tensor tensor = kv_tensor_cpu(zeros, KV_F32, 4, shapes[i]);
        check_refused(store, tensor, KV_ERR_INVALID_ARGUMENT);
    }
    for (size_t i = 0; i < sizeof strides / sizeof strides[0]; i++) {
        kv_tensor tensor = good_tensor();
        tensor.strides = strides[i];
        check_refused(store, tensor, KV_ERR_INVALID_ARGUMENT);
    }
    kv_tensor tensor = good_tensor();
    tensor.byte_offset = UINT64_MAX - 3;
    check_refused(store, tensor, KV_ERR_INVALID_ARGUMENT);
    tensor.byte_offset = (uint64_t)1 << 63;
    check_refused(store, tensor, KV_ERR_INVALID_ARGUMENT);
}

static void memory_is_checked(kv_store *store) {
    kv_tensor tensor = good_tensor();
    tensor.data = NULL;
    check_refused(store, tensor, KV_ERR_INVALID_ARGUMENT);
    for (uint64_t offset = 1; offset < sizeof zeros[0]; offset++) {
        tensor = good_tensor();
        tensor.byte_offset = offset;
        check_refused(store, tensor, KV_ERR_INVALID_ARGUMENT);
        tensor.byte_offset = 0;
        tensor.data = (char *)zeros + offset;
        check_refused(store, tensor, KV_ERR_INVALID_ARGUMENT);
    }
}

/* What DLPack can say and the library cannot: floats of other sizes, two lanes, no lanes. */
static void dtypes_are_checked(kv_store *store) {
    static const uint32_t unknown[] = {
        0,
        6 | 1 << 8 | 1 << 16,
        5 | 32 << 8 | 1 << 16,
        2 | 8 << 8 | 1 << 16,
        7 | 8 << 8 | 1 << 16,
        17 | 4 << 8 | 2 << 16,
        2 | 32 << 8 | 2 << 16,
        2 | 32 << 8,
        2 | 128 << 8 | 1 << 16,
        UINT32_MAX,
    };
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        kv_tensor tensor = good_tensor();
        tensor.dtype = unknown[i];
        check_refused(store, tensor, KV_ERR_INVALID_ARGUMENT);
    }
}

/*
 * Devices that DLPack knows are not served but for the CPU and its pinned memory; any id will do.
 * All other numbers are no devices.
 */
static void devices_are_checked(kv_store *store) {
    static const int32_t unserved[] = {4, 10, KV_CUDA_MANAGED, 18};
    static const int32_t unknown[] = {0, -1, 1000, INT32_MAX, INT32_MIN};
    static const int32_t ids[] = {0, 1, 2, 3, 1000, -1, INT32_MIN};
    kv_key key = 1;
    for (size_t i = 0; i < sizeof unserved / sizeof unserved[0]; i++) {
        kv_tensor tensor = good_tensor();
        tensor.device.type = unserved[i];
        check_refused(store, tensor, KV_ERR_UNSUPPORTED);
    }
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        kv_tensor tensor = good_tensor();
        tensor.device.type = unknown[i];
        check_refused(store, tensor, KV_ERR_INVALID_ARGUMENT);
    }
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        kv_tensor tensor = good_tensor();
        tensor.device.id = ids[i];
        CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, NULL), KV_OK);
        tensor.device.type = KV_CUDA_HOST;
        CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, NULL), KV_OK);
        CHECK_STATUS(kv_pull(store, &key, &tensor, 1, 0, NULL), KV_OK);
    }
}

/* 2^60 elements in one byte of memory: nothing in the tensor is wrong but the room it needs. */
static void a_value_larger_than_memory(kv_store *store) {
    int64_t shape[] = {(int64_t)1 << 60}, strides[] = {0};
    kv_key keys[] = {5, 6};
    int64_t number = 1;
    size_t count = 0;
    kv_tensor values[] = {number_tensor(&number), kv_tensor_cpu(zeros, KV_U8, 1, shape)};
    values[1].strides = strides;
    CHECK_STATUS(kv_init(store, keys, values, 2), KV_ERR_OUT_OF_MEMORY);
    CHECK(error_says("key 6"));
    CHECK_STATUS(kv_broadcast(store, keys, values, 2, NULL, NULL, 0, 0, NULL),
                 KV_ERR_OUT_OF_MEMORY);
    values[1].dtype = KV_F32;
    CHECK_STATUS(kv_init(store, keys, values, 2), KV_ERR_OUT_OF_MEMORY);
    CHECK_STATUS(kv_keys(store, NULL, 0, &count), KV_OK);
    CHECK(count == 1);
}

/* Extents of 1 may have any stride, and extents of 0 any of all. */
static void strides_that_are_never_used_do_not_matter(kv_store *store) {
    int64_t flat[] = {1, 6, 1}, odd[] = {INT64_MAX, 1, INT64_MIN};
    int64_t none[] = {INT64_MAX, 0, INT64_MAX}, far[] = {INT64_MAX, INT64_MIN, 3};
    float data[] = {1, 2, 3, 4, 5, 6}, got[6] = {0};
    kv_key keys[] = {5, 6};
    kv_tensor values[] = {kv_tensor_cpu(data, KV_F32, 3, flat),
                          kv_tensor_cpu(NULL, KV_F32, 3, none)};
    kv_tensor outs[] = {kv_tensor_cpu(got, KV_F32, 3, flat), values[1]};
    values[0].strides = outs[0].strides = odd;
    values[1].strides = outs[1].strides = far;
    CHECK_STATUS(kv_init(store, keys, values, 2), KV_OK);
    CHECK_STATUS(kv_push(store, keys, values, 2, 0, NULL), KV_OK);
    CHECK_STATUS(kv_pull(store, keys, outs, 2, 0, NULL), KV_OK);
    CHECK(memcmp(got, data, sizeof data) == 0);
    CHECK_STATUS(kv_remove(store, keys, 2), KV_OK);
}

/* A number needs no shape; shape and strides are then not looked at. */
static void a_single_number_needs_no_shape(kv_store *store) {
    int64_t nothing[] = {-7}, number = 5;
    kv_key key = 5;
    kv_tensor value = kv_tensor_cpu(&number, KV_I64, 0, nothing);
    value.strides = nothing;
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    value.shape = NULL;
    CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL), KV_OK);
    CHECK(pull_number(store, 5) == 5);
    CHECK_STATUS(kv_remove(store, &key, 1), KV_OK);
}

int main(void) {
    alarm_after_minutes(5);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        kv_store *store = open_store(STORE_TYPES[i]);
        kv_tensor good = good_tensor();
        kv_key key = 1;
        CHECK_STATUS(kv_init(store, &key, &good, 1), KV_OK);
        dimensions_are_checked(store);
        overflows_are_seen(store);
        memory_is_checked(store);
        dtypes_are_checked(store);
        devices_are_checked(store);
        a_value_larger_than_memory(store);
        strides_that_are_never_used_do_not_matter(store);
        a_single_number_needs_no_shape(store);
        kv_free(store);
    }
    return check_passed("api_tensor");
}
