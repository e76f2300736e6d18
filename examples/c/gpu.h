/*
 * Memory and streams of GPUs, by the driver's own interface: the program needs no CUDA to be built
 * and starts without a GPU. The driver is the one that the library uses: libcuda.so.1, or the path in
 * the variable KV_CUDA. A call that fails ends the program with a message.
 */
#ifndef GPU_H
#define GPU_H

#include <kvstore.h>
#include <stddef.h>

struct gpu {
    kv_device device;
    void *context; /* CUcontext */
    void *stream;  /* CUstream, on which the program and the library use the GPU */
};

/* Opens the driver and returns the number of GPUs; 0 with the reason, as a text, if there is none. */
int gpu_open(char *reason, size_t room);

/* Makes a stream of the GPU of a number. */
void gpu_start(struct gpu *gpu, int number);

/* Memory of the GPU; gpu_free() waits for the stream first. */
void *gpu_allocate(const struct gpu *gpu, size_t bytes);
void gpu_free(const struct gpu *gpu, void *memory);

/* Queues a copy to the GPU. `from` may be written again at once. */
void gpu_upload(const struct gpu *gpu, void *to, const void *from, size_t bytes);

/* Copies from the GPU, behind what is queued on its stream, and waits. */
void gpu_download(const struct gpu *gpu, void *to, const void *from, size_t bytes);

/* Destroys the stream. */
void gpu_stop(const struct gpu *gpu);

#endif
