/*
 * Memory and streams of GPUs for the C and C++ tests, through the driver that KV_CUDA names: the
 * stand-in of tests/cuda. Without one a test is skipped. A failed call of the driver ends the test.
 */
#ifndef GPU_H
#define GPU_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* The exit status of a test that was skipped. */
enum { GPU_SKIPPED = 77 };

static inline void *gpu_function(const char *name) {
    static void *driver;
    const char *path = getenv("KV_CUDA");
    void *function;
    if (driver == NULL && path != NULL && *path != '\0') {
        driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (driver == NULL) {
        fprintf(stderr, "skipped: KV_CUDA names no driver\n");
        exit(GPU_SKIPPED);
    }
    function = dlsym(driver, name);
    if (function == NULL) {
        fprintf(stderr, "%s has no function %s\n", path, name);
        exit(1);
    }
    return function;
}

static inline void gpu_check(uint32_t status, const char *name) {
    char text[400] = "";
    if (status != 0) {
        (__extension__(void (*)(char *, size_t))gpu_function("kv_cuda_stand_in_message"))(
            text, sizeof text);
        fprintf(stderr, "%s: error %u of the driver: %s\n", name, (unsigned)status, text);
        exit(1);
    }
}

/* Calls a function of the driver; `types` are those of its parameters, in parentheses. */
#define GPU(name, types, ...) \
    gpu_check((__extension__(uint32_t(*) types)gpu_function(name))(__VA_ARGS__), name)

/* Makes the primary context of a device current on this thread. */
static inline void gpu_enter(int32_t device) {
    void *context = NULL;
    GPU("cuInit", (uint32_t), 0);
    GPU("cuDevicePrimaryCtxRetain", (void **, int32_t), &context, device);
    GPU("cuCtxSetCurrent", (void *), context);
}

/* A stream of the current device, which the legacy default stream does not wait for. */
static inline void *gpu_stream(void) {
    void *stream = NULL;
    GPU("cuStreamCreate", (void **, uint32_t), &stream, 1);
    return stream;
}

/* Waits for all that is queued on a stream of the current device. */
static inline void gpu_wait(void *stream) { GPU("cuStreamSynchronize", (void *), stream); }

/* Memory of the current device. */
static inline void *gpu_allocate(size_t bytes) {
    uint64_t address = 0;
    GPU("cuMemAlloc_v2", (uint64_t *, size_t), &address, bytes);
    return (void *)(uintptr_t)address;
}

static inline void gpu_free(void *memory) {
    GPU("cuMemFree_v2", (uint64_t), (uint64_t)(uintptr_t)memory);
}

/* Queues a copy into memory of the current device. The bytes are read at the call. */
static inline void gpu_write(void *to, const void *from, size_t bytes, void *stream) {
    GPU("cuMemcpyHtoDAsync_v2", (uint64_t, const void *, size_t, void *), (uint64_t)(uintptr_t)to,
        from, bytes, stream);
}

/* Copies from memory of the current device, behind what is queued on the stream, and waits. */
static inline void gpu_read(void *to, const void *from, size_t bytes, void *stream) {
    GPU("cuMemcpyDtoHAsync_v2", (void *, uint64_t, size_t, void *), to, (uint64_t)(uintptr_t)from,
        bytes, stream);
    gpu_wait(stream);
}

/* Draws another order of streams, once all have run. */
static inline void gpu_seed(uint64_t seed) {
    GPU("cuCtxSynchronize", (void), );
    (__extension__(void (*)(uint64_t))gpu_function("kv_cuda_stand_in_seed"))(seed);
}

/* Plans faults of the driver. */
static inline void gpu_fail(const char *plan) {
    (__extension__(void (*)(const char *))gpu_function("kv_cuda_stand_in_fail"))(plan);
}

#endif /* GPU_H */
