// Tensors in GPU memory, and streams. The driver is the stand-in of tests/cuda: it keeps the host
// out of the memory of its GPUs, and runs streams as late and as oddly as events allow.
#include "gpu_array.hpp"

#include <stdexcept>
#include <thread>

namespace {

bool is(kv_device device, kv_device other) {
    return device.type == other.type && device.id == other.id;
}

void without_a_driver_gpus_are_an_error_of_their_own() {
    kv::Store store("device", {{"cuda", "/no/such/driver.so"}});
    float number = 5;
    const kv::Tensor tensor = kv::view(&number, {}, kv::cuda(0));
    CHECK_THROWS(store.init(1, tensor), KV_ERR_DEVICE, "/no/such/driver.so");
    store.init(1, kv::view(&number, {}));
    CHECK_THROWS(store.push(1, tensor, kv::async), KV_ERR_DEVICE, "key 1");
    CHECK(is(store.key_device(1), kv::cpu()));
}

void views_name_their_device() {
    float data[6] = {};
    const float* constant = data;
    const kv::Tensor tensor = kv::view(data, {2, 3}, kv::cuda(3));
    CHECK(is(tensor.device(), kv::cuda(3)) && tensor.strides().size() == 0);
    CHECK(tensor.data<float>() == data && tensor.size() == 6);
    const kv::ConstTensor value = kv::view(constant, {3, 2}, {1, 3}, kv::cuda(1));
    CHECK(is(value.device(), kv::cuda(1)) && value.strides()[1] == 3);
    static_assert(std::is_same_v<decltype(kv::view(constant, {6}, kv::cuda(0))), kv::ConstTensor>);
    // Strides of two numbers are no device.
    CHECK(is(kv::view(data, {3, 2}, {1, 3}).device(), kv::cpu()));
}

void tensors_of_a_gpu_are_values_and_outs() {
    for (const char* type : {"local", "device"}) {
        kv::Store store(type);
        const GpuArray first(2), value(3), out(0);
        store.init("weight", first.view());
        const bool stays = std::string(type) == "device";
        CHECK(is(store.key_device("weight"), stays ? kv::cuda(0) : kv::cpu()));
        CHECK_THROWS(store.key_device(8), KV_ERR_KEY_NOT_FOUND, "key 8");
        store.pull("weight", out.view());
        CHECK(out.get() == 2);
        store.set_optimizer("sgd", {{"learning_rate", 0.5}});
        store.pushpull("weight", {value.view(), value.view()}, out.view());
        CHECK(out.get() == -1);
        Floats host(elements, 4);
        store.push("weight", {kv::view(host, {2, 3}), value.view()});
        store.pull("weight", {kv::view(host, {2, 3}), out.view()});
        CHECK(host == Floats(elements, -4.5F) && out.get() == -4.5F);
    }
}

// Queues a gradient on a side stream, pushes it, and queues the next one into the same memory.
float pushed_from(kv::Store& store, void* side, bool named) {
    GpuArray gradient(1, side);
    const GpuArray out(7, side);
    gpu_wait(side);
    gradient.set(5);
    if (named) {
        const kv::stream_guard guard(kv::cuda(0), side);
        store.push(1, gradient.view());
        store.pull(1, out.view());
    } else {
        store.push(1, gradient.view());
        store.pull(1, out.view());
    }
    gradient.set(9);
    const float value = out.get();
    gpu_wait(nullptr);  // before the memory is freed
    return value;
}

void a_call_is_queued_on_the_stream_that_is_named() {
    kv::Store store("device");
    const GpuArray first(0);
    store.init(1, first.view());
    void* side = gpu_stream();
    int unordered = 0;
    for (std::uint64_t seed = 1; seed <= 30; seed++) {
        gpu_seed(seed);
        CHECK(pushed_from(store, side, true) == 5);
        unordered += pushed_from(store, side, false) != 5;
    }
    // The stand-in does show it where the stream is not named.
    CHECK(unordered > 0);
}

void a_ticket_is_done_when_the_gpu_is() {
    kv::Store store("device");
    void* side = gpu_stream();
    const kv::stream_guard guard(kv::cuda(0), side);
    const GpuArray first(0, side), value(3, side), out(0, side);
    store.init(1, first.view());
    kv::Ticket pushed = store.push(1, {value.view(), value.view()}, kv::async);
    kv::Ticket pulled = store.pull(1, out.view(), kv::async(5));
    pulled.wait(patience);
    pushed.wait(patience);
    CHECK(out.get() == 6);
}

void an_updater_may_get_the_arrays_on_the_gpu() {
    void* const side = gpu_stream();
    std::vector<void*> streams;
    const auto halve = [&](kv::Key, const kv::ConstTensor& input, kv::Tensor& stored) {
        CHECK(is(input.device(), kv::cuda(0)) && is(stored.device(), kv::cuda(0)));
        CHECK(stored.size() == elements && stored.dtype() == KV_F32);
        streams.push_back(kv::stream(stored.device()));
        const auto address = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data); };
        GPU("cuMemcpyDtoDAsync_v2", (std::uint64_t, std::uint64_t, std::size_t, void*),
            address(stored.data<float>()), address(input.data<float>()), bytes / 2, streams.back());
    };
    Floats values(elements);
    const Floats halves{5, 5, 5, 1, 1, 1};
    for (std::uint64_t seed = 1; seed <= 30; seed++) {
        gpu_seed(seed);
        const kv::stream_guard guard(kv::cuda(0), side);
        kv::Store store("device", {{"updater_memory", "device"}});
        const GpuArray first(1, side), value(2, side), other(3, side), out(0, side);
        store.init(1, first.view());
        store.set_updater(halve);
        store.pushpull(1, {value.view(), other.view()}, out.view());
        CHECK(streams.back() == side);
        gpu_read(values.data(), out.view().data<float>(), bytes, side);
        CHECK(values == halves);
    }
    kv::Store store("device", {{"updater_memory", "device"}, {"updater_undo", "yes"}});
    const GpuArray first(1), value(5), out(0);
    store.init(1, first.view());
    store.set_updater([&](kv::Key key, const kv::ConstTensor& input, kv::Tensor& stored) {
        halve(key, input, stored);
        throw std::runtime_error("no such rule");
    });
    CHECK_THROWS(store.push(1, value.view()), KV_ERR_CALLBACK, "no such rule");
    store.pull(1, out.view());
    CHECK(out.get() == 1);
}

void a_guard_names_the_stream_before_it_again() {
    void* const one = gpu_stream();
    void* const other = gpu_stream();
    CHECK(kv::stream(kv::cuda(0)) == nullptr);
    {
        const kv::stream_guard outer(kv::cuda(0), one);
        CHECK(kv::stream(kv::cuda(0)) == one);
        try {
            const kv::stream_guard inner(kv::cuda(0), other);
            CHECK(kv::stream(kv::cuda(0)) == other);
            CHECK(kv::stream(kv::cuda(1)) == nullptr);
            std::thread([] { CHECK(kv::stream(kv::cuda(0)) == nullptr); }).join();
            throw std::runtime_error("a failed step");
        } catch (const std::runtime_error&) {
            CHECK(kv::stream(kv::cuda(0)) == one);
        }
        // A guard that cannot be made changes nothing.
        int no_stream = 0;
        CHECK_THROWS(kv::stream_guard(kv::cuda(0), &no_stream), KV_ERR_INVALID_ARGUMENT,
                     "stream");
        CHECK(kv::stream(kv::cuda(0)) == one);
        kv::set_stream(kv::cuda(0), other);
    }
    CHECK(kv::stream(kv::cuda(0)) == nullptr);
    static_assert(!std::is_copy_constructible_v<kv::stream_guard>);
}

void streams_belong_to_cuda_devices() {
    const auto refused = KV_ERR_INVALID_ARGUMENT;
    CHECK_THROWS(kv::set_stream(kv::cpu(), nullptr), refused, "set_stream");
    CHECK_THROWS(kv::set_stream(kv::cuda(-1), nullptr), refused, "set_stream");
    CHECK_THROWS(kv::stream(kv::cuda(9)), refused, "device 9");
    gpu_enter(1);
    void* const of_another = gpu_stream();
    CHECK_THROWS(kv::set_stream(kv::cuda(0), of_another), refused, "stream");
    kv::set_stream(kv::cuda(1), of_another);
    kv::set_stream(kv::cuda(1), nullptr);
    gpu_enter(0);
}

void threads_with_streams_of_their_own_share_a_key() {
    constexpr int threads = 3, pushes = 20;
    kv::Store store("device");
    const GpuArray first(0);
    store.init(1, first.view());
    store.set_optimizer("test");  // adds the sum
    std::vector<std::thread> workers;
    for (int i = 0; i < threads; i++) {
        workers.emplace_back([&store] {
            gpu_enter(0);
            void* side = gpu_stream();
            const kv::stream_guard guard(kv::cuda(0), side);
            GpuArray gradient(0, side);
            for (int push = 0; push < pushes; push++) {
                gradient.set(1);
                store.push(1, gradient.view());
                gradient.set(100);
            }
        });
    }
    for (std::thread& worker : workers) {
        worker.join();
    }
    const GpuArray out(0);
    store.pull(1, out.view());
    CHECK(out.get() == threads * pushes);
}

// Loses the GPU: the last test.
void a_lost_gpu_is_an_error_of_keys_there_alone() {
    kv::Store store("device");
    static const GpuArray& first = *new GpuArray(1);  // its memory cannot be freed any more
    Floats host(elements, 3);
    store.init(1, first.view());
    store.init(2, kv::view(host, {2, 3}));
    gpu_wait(nullptr);
    gpu_fail("cuMemcpyHtoDAsync_v2:1=719");
    CHECK_THROWS(store.push(1, {first.view(), first.view()}), KV_ERR_DEVICE, "GPU 0");
    CHECK_THROWS(store.pull(1, kv::view(host, {2, 3})), KV_ERR_DEVICE, "GPU 0");
    store.push(2, {kv::view(host, {2, 3}), kv::view(host, {2, 3})});
    store.pull(2, kv::view(host, {2, 3}));
    CHECK(host == Floats(elements, 6));
}

}  // namespace

int main() {
    return run("devices", [] {
        skip_without_cuda();
        without_a_driver_gpus_are_an_error_of_their_own();
        views_name_their_device();
        gpu_enter(0);
        tensors_of_a_gpu_are_values_and_outs();
        a_call_is_queued_on_the_stream_that_is_named();
        a_ticket_is_done_when_the_gpu_is();
        an_updater_may_get_the_arrays_on_the_gpu();
        a_guard_names_the_stream_before_it_again();
        streams_belong_to_cuda_devices();
        threads_with_streams_of_their_own_share_a_key();
        a_lost_gpu_is_an_error_of_keys_there_alone();
    });
}
