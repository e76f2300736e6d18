#include "gpu.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The functions of the driver that are used. An address of the GPU is a number to it. */
static struct {
    int (*cuInit)(unsigned flags);
    int (*cuGetErrorName)(int error, const char **name);
    int (*cuDeviceGetCount)(int *count);
    int (*cuDevicePrimaryCtxRetain)(void **context, int device);
    int (*cuCtxSetCurrent)(void *context);
    int (*cuStreamCreate)(void **stream, unsigned flags);
    int (*cuStreamSynchronize)(void *stream);
    int (*cuStreamDestroy_v2)(void *stream);
    int (*cuMemAlloc_v2)(uint64_t *address, size_t bytes);
    int (*cuMemFree_v2)(uint64_t address);
    int (*cuMemcpyHtoDAsync_v2)(uint64_t to, const void *from, size_t bytes, void *stream);
    int (*cuMemcpyDtoHAsync_v2)(void *to, uint64_t from, size_t bytes, void *stream);
} driver;

static const char *error_name(int error) {
    const char *name = NULL;
    return driver.cuGetErrorName(error, &name) == 0 && name != NULL ? name : "an unknown error";
}

static void check(int error, const char *call) {
    if (error != 0) {
        fprintf(stderr, "%s: %s\n", call, error_name(error));
        exit(EXIT_FAILURE);
    }
}

/* Calls a function of the driver. */
#define CALL(name, ...) check(driver.name(__VA_ARGS__), #name)

/* Looks a function up; `function` is the place of its pointer. */
static bool find(void *library, const char *name, void *function, char *reason, size_t room) {
    void *const found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    if (found == NULL) {
        snprintf(reason, room, "the driver has no function %s", name);
    }
    return found != NULL;
}

static bool find_all(void *library, char *reason, size_t room) {
#define FIND(name) find(library, #name, &driver.name, reason, room)
    return FIND(cuInit) && FIND(cuGetErrorName) && FIND(cuDeviceGetCount) &&
           FIND(cuDevicePrimaryCtxRetain) && FIND(cuCtxSetCurrent) && FIND(cuStreamCreate) &&
           FIND(cuStreamSynchronize) && FIND(cuStreamDestroy_v2) && FIND(cuMemAlloc_v2) &&
           FIND(cuMemFree_v2) && FIND(cuMemcpyHtoDAsync_v2) && FIND(cuMemcpyDtoHAsync_v2);
#undef FIND
}

int gpu_open(char *reason, size_t room) {
    const char *path = getenv("KV_CUDA");
    if (path == NULL || *path == '\0' || strcmp(path, "auto") == 0) {
        path = "libcuda.so.1";
    }
    if (strcmp(path, "no") == 0) {
        snprintf(reason, room, "the variable KV_CUDA is no");
        return 0;
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(reason, room, "%s", dlerror());
        return 0;
    }
    if (!find_all(library, reason, room)) {
        return 0;
    }
    int count = 0;
    int error = driver.cuInit(0);
    if (error == 0) {
        error = driver.cuDeviceGetCount(&count);
    }
    if (error != 0 || count == 0) {
        snprintf(reason, room, "%s", error == 0 ? "the driver finds none" : error_name(error));
        return 0;
    }
    return count;
}

/* Makes the GPU current: the driver's calls on memory are for the current one. */
static void enter(const struct gpu *gpu) { CALL(cuCtxSetCurrent, gpu->context); }

void gpu_start(struct gpu *gpu, int number) {
    const unsigned non_blocking = 1;
    gpu->device = (kv_device){KV_CUDA, number};
    CALL(cuDevicePrimaryCtxRetain, &gpu->context, number);
    enter(gpu);
    CALL(cuStreamCreate, &gpu->stream, non_blocking);
}

void *gpu_allocate(const struct gpu *gpu, size_t bytes) {
    uint64_t address = 0;
    enter(gpu);
    CALL(cuMemAlloc_v2, &address, bytes);
    return (void *)(uintptr_t)address;
}

void gpu_free(const struct gpu *gpu, void *memory) {
    enter(gpu);
    CALL(cuStreamSynchronize, gpu->stream);
    CALL(cuMemFree_v2, (uintptr_t)memory);
}

void gpu_upload(const struct gpu *gpu, void *to, const void *from, size_t bytes) {
    enter(gpu);
    CALL(cuMemcpyHtoDAsync_v2, (uintptr_t)to, from, bytes, gpu->stream);
}

void gpu_download(const struct gpu *gpu, void *to, const void *from, size_t bytes) {
    enter(gpu);
    CALL(cuMemcpyDtoHAsync_v2, to, (uintptr_t)from, bytes, gpu->stream);
    CALL(cuStreamSynchronize, gpu->stream);
}

void gpu_stop(const struct gpu *gpu) {
    enter(gpu);
    CALL(cuStreamDestroy_v2, gpu->stream);
}
