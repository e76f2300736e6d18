// gpu_array.hpp - floats in GPU memory, for the tests on the stand-in driver.
#ifndef GPU_ARRAY_HPP
#define GPU_ARRAY_HPP

#include "check.hpp"

#include "../../../tests/c/gpu.h"

#include <vector>

using Floats = std::vector<float>;

inline constexpr std::size_t elements = 6;
inline constexpr std::size_t bytes = elements * sizeof(float);

// Floats in the memory of a GPU, which are written and read on one stream.
class GpuArray {
public:
    explicit GpuArray(float value, void* stream = nullptr, int gpu = 0)
        : gpu_(gpu), stream_(stream), memory_(allocated(gpu)) {
        set(value);
    }
    GpuArray(const GpuArray&) = delete;
    GpuArray& operator=(const GpuArray&) = delete;
    ~GpuArray() {
        gpu_enter(gpu_);
        gpu_wait(stream_);
        gpu_free(memory_);
    }

    [[nodiscard]] kv::Tensor view() const {
        return kv::view(static_cast<float*>(memory_), {2, 3}, kv::cuda(gpu_));
    }

    // Queues the values, as a kernel would that computes a gradient.
    void set(float value) {
        const Floats values(elements, value);
        gpu_enter(gpu_);
        gpu_write(memory_, values.data(), bytes, stream_);
    }

    // Waits for the stream; gives the value of all elements.
    [[nodiscard]] float get() const {
        Floats values(elements);
        gpu_enter(gpu_);
        gpu_read(values.data(), memory_, bytes, stream_);
        CHECK(values == Floats(elements, values[0]));
        return values[0];
    }

private:
    static void* allocated(int gpu) {
        gpu_enter(gpu);
        return gpu_allocate(bytes);
    }

    int gpu_;
    void* stream_;
    void* memory_;
};

inline void skip_without_cuda() {
    kv::Store store("local", {{"cuda", "/no/such/driver.so"}});
    float number = 5;
    try {
        store.init(1, kv::view(&number, {}, kv::cuda(0)));
    } catch (const kv::Error& error) {
        if (error.status() == KV_ERR_UNSUPPORTED) {
            std::fprintf(stderr, "skipped: %s\n", error.what());
            std::exit(GPU_SKIPPED);
        }
    }
}

#endif  // GPU_ARRAY_HPP
