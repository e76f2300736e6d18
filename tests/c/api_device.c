/*
 * Devices: which one has a key, the streams of a thread, and CUDA tensors without a driver that could
 * be used. tests/device has the calls that a driver serves.
 */
#include "support.h"

static const kv_device GPU = {KV_CUDA, 0};
static const char NO_DRIVER[] = "/no/such/driver.so";

static kv_tensor on_gpu(void *data) {
    kv_tensor tensor = number_tensor(data);
    tensor.device = GPU;
    return tensor;
}

static void values_of_host_memory_are_on_the_cpu(void) {
    static const char *const types[] = {"local", "device"};
    for (size_t i = 0; i < 2; i++) {
        kv_store *store = open_store(types[i]);
        kv_device device = {77, 77};
        init_number(store, 1, 10);
        CHECK_STATUS(kv_key_device(store, 1, &device), KV_OK);
        CHECK(device.type == KV_CPU && device.id == 0);
        device.type = 77;
        CHECK_STATUS(kv_key_device(store, 2, &device), KV_ERR_KEY_NOT_FOUND);
        CHECK(device.type == 77);
        kv_free(store);
    }
}

static void streams_belong_to_cuda_devices(void) {
    static const kv_device wrong[] = {{KV_CPU, 0}, {KV_CUDA_HOST, 0}, {10, 0}, {KV_CUDA, -1}};
    void *stream = &stream;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_STATUS(kv_set_stream(wrong[i], NULL), KV_ERR_INVALID_ARGUMENT);
        CHECK(error_says("set_stream"));
        CHECK_STATUS(kv_stream(wrong[i], &stream), KV_ERR_INVALID_ARGUMENT);
        CHECK(stream == &stream);
    }
}

/* A build without CUDA refuses what one with CUDA asks the driver for. */
static int is_refused(kv_status status) {
    return status == KV_ERR_UNSUPPORTED || (status == KV_ERR_DEVICE && error_says(NO_DRIVER));
}

static void without_a_driver_only_cuda_tensors_fail(void) {
    int64_t number = 5;
    kv_tensor tensor = on_gpu(&number);
    kv_key keys[] = {1, 2};
    kv_store *store = open_with("cuda", NO_DRIVER);
    init_number(store, 1, 10);
    CHECK(is_refused(kv_init(store, keys + 1, &tensor, 1)));
    CHECK(error_says("key 2"));
    CHECK(is_refused(kv_push(store, keys, &tensor, 1, 0, NULL)));
    kv_ticket ticket = UNTOUCHED;
    CHECK(is_refused(kv_pull(store, keys, &tensor, 1, 0, &ticket)));
    CHECK(error_says("key 1"));
    CHECK(ticket == UNTOUCHED && pull_number(store, 1) == 10);
    push_number(store, 1, 7);
    CHECK(pull_number(store, 1) == 7);
    kv_free(store);
    store = open_with("cuda", "no");
    CHECK_STATUS(kv_init(store, keys, &tensor, 1), KV_ERR_UNSUPPORTED);
    kv_free(store);
}

int main(void) {
    values_of_host_memory_are_on_the_cpu();
    streams_belong_to_cuda_devices();
    without_a_driver_only_cuda_tensors_fail();
    return check_passed("api_device");
}
