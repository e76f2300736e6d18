// Package gpu uses memory and streams of GPUs in the tests, through the driver that the variable
// KV_CUDA names: the stand-in of tests/cuda. Calls that fail panic.
package gpu

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

static void *driver;

static int gpu_open(const char *path) {
    driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return driver != NULL;
}

#define FUNCTION(name, types) ((uint32_t(*) types)dlsym(driver, name))

static uint32_t gpu_enter(int32_t device) {
    void *context = NULL;
    uint32_t status = FUNCTION("cuInit", (uint32_t))(0);
    if (status == 0) {
        status = FUNCTION("cuDevicePrimaryCtxRetain", (void **, int32_t))(&context, device);
    }
    return status != 0 ? status : FUNCTION("cuCtxSetCurrent", (void *))(context);
}

static uint32_t gpu_stream(int32_t device, uintptr_t *stream) {
    uint32_t status = gpu_enter(device);
    return status != 0 ? status
                       : FUNCTION("cuStreamCreate", (void **, uint32_t))((void **)stream, 1);
}

static uint32_t gpu_destroy(int32_t device, uintptr_t stream) {
    uint32_t status = gpu_enter(device);
    return status != 0 ? status : FUNCTION("cuStreamDestroy_v2", (void *))((void *)stream);
}

static uint32_t gpu_wait(int32_t device, uintptr_t stream) {
    uint32_t status = gpu_enter(device);
    return status != 0 ? status : FUNCTION("cuStreamSynchronize", (void *))((void *)stream);
}

static uint32_t gpu_allocate(int32_t device, uint64_t *address, size_t bytes) {
    uint32_t status = gpu_enter(device);
    return status != 0 ? status : FUNCTION("cuMemAlloc_v2", (uint64_t *, size_t))(address, bytes);
}

static uint32_t gpu_write(int32_t device, uint64_t to, const void *from, size_t bytes,
                          uintptr_t stream) {
    uint32_t status = gpu_enter(device);
    return status != 0 ? status
                       : FUNCTION("cuMemcpyHtoDAsync_v2", (uint64_t, const void *, size_t, void *))(
                             to, from, bytes, (void *)stream);
}

static uint32_t gpu_read(int32_t device, void *to, uint64_t from, size_t bytes, uintptr_t stream) {
    uint32_t status = gpu_enter(device);
    if (status == 0) {
        status = FUNCTION("cuMemcpyDtoHAsync_v2", (void *, uint64_t, size_t, void *))(
            to, from, bytes, (void *)stream);
    }
    return status != 0 ? status : gpu_wait(device, stream);
}

static uint32_t gpu_copy(int32_t device, uint64_t to, uint64_t from, size_t bytes,
                         uintptr_t stream) {
    uint32_t status = gpu_enter(device);
    return status != 0 ? status
                       : FUNCTION("cuMemcpyDtoDAsync_v2", (uint64_t, uint64_t, size_t, void *))(
                             to, from, bytes, (void *)stream);
}

static uint32_t gpu_seed(int32_t device, uint64_t seed) {
    uint32_t status = gpu_enter(device);
    if (status == 0) {
        status = FUNCTION("cuCtxSynchronize", (void))();
    }
    FUNCTION("kv_cuda_stand_in_seed", (uint64_t))(seed);
    return status;
}
*/
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

// Open opens the driver. It reports whether there is one.
func Open() bool {
	path := os.Getenv("KV_CUDA")
	if path == "" {
		return false
	}
	text := C.CString(path)
	defer C.free(unsafe.Pointer(text))
	return C.gpu_open(text) != 0
}

func check(status C.uint32_t, call string) {
	if status != 0 {
		panic(fmt.Sprintf("%s: error %d of the driver", call, status))
	}
}

// NewStream makes a stream of a GPU, which the legacy default stream does not wait for.
func NewStream(device int) uintptr {
	var stream C.uintptr_t
	check(C.gpu_stream(C.int32_t(device), &stream), "stream")
	return uintptr(stream)
}

// Destroy destroys a stream.
func Destroy(device int, stream uintptr) {
	check(C.gpu_destroy(C.int32_t(device), C.uintptr_t(stream)), "destroy")
}

// Wait waits for all that is queued on a stream.
func Wait(device int, stream uintptr) {
	check(C.gpu_wait(C.int32_t(device), C.uintptr_t(stream)), "wait")
}

// Allocate gives memory of a GPU.
func Allocate(device, bytes int) uintptr {
	var address C.uint64_t
	check(C.gpu_allocate(C.int32_t(device), &address, C.size_t(bytes)), "allocate")
	return uintptr(address)
}

// Write queues a copy of floats into memory of a GPU. They are read at the call.
func Write(device int, to uintptr, from []float32, stream uintptr) {
	check(C.gpu_write(C.int32_t(device), C.uint64_t(to), unsafe.Pointer(&from[0]),
		C.size_t(4*len(from)), C.uintptr_t(stream)), "write")
}

// Read copies floats from memory of a GPU, behind what is queued on the stream.
func Read(device int, to []float32, from uintptr, stream uintptr) {
	check(C.gpu_read(C.int32_t(device), unsafe.Pointer(&to[0]), C.uint64_t(from),
		C.size_t(4*len(to)), C.uintptr_t(stream)), "read")
}

// Copy queues a copy of bytes within the memory of a GPU.
func Copy(device int, to, from uintptr, bytes int, stream uintptr) {
	check(C.gpu_copy(C.int32_t(device), C.uint64_t(to), C.uint64_t(from), C.size_t(bytes),
		C.uintptr_t(stream)), "copy")
}

// Seed draws another order of streams, once all of a GPU have run.
func Seed(device int, seed uint64) {
	check(C.gpu_seed(C.int32_t(device), C.uint64_t(seed)), "seed")
}
