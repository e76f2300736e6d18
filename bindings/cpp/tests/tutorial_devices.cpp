// The tutorial on four GPUs prints what it prints in host memory. "Device" i of
// examples/cpp/tutorial.cpp is GPU i here, with a stream of its own.
#include "gpu_array.hpp"

#include <fstream>
#include <memory>
#include <sstream>

namespace {

constexpr int devices = 4;

// What has been printed.
std::ostringstream page;

// An array on each of some GPUs.
class Arrays {
public:
    Arrays(int count, float value) {
        for (int gpu = 0; gpu < count; gpu++) {
            arrays_.push_back(std::make_unique<GpuArray>(value, kv::stream(kv::cuda(gpu)), gpu));
        }
    }

    [[nodiscard]] std::vector<kv::Tensor> views() const {
        std::vector<kv::Tensor> views;
        for (const auto& array : arrays_) {
            views.push_back(array->view());
        }
        return views;
    }

    // Prints the value that all elements of all arrays have.
    void show(const char* name) const {
        const float value = arrays_.front()->get();
        for (const auto& array : arrays_) {
            CHECK(array->get() == value);
        }
        page << name << ": " << value << '\n';
    }

private:
    std::vector<std::unique_ptr<GpuArray>> arrays_;
};

void push(kv::Store& store, int count, float value) {
    const Arrays values(count, value);
    store.push(3, values.views());
}

void pull(kv::Store& store, const char* name, int count = 1) {
    const Arrays outs(count, 0);
    store.pull(3, outs.views());
    outs.show(name);
}

void set_updater(kv::Store& store, float factor, std::vector<kv::Key>& calls) {
    store.set_updater([&, factor](kv::Key key, const kv::ConstTensor& input, kv::Tensor& stored) {
        calls.push_back(key);
        for (std::size_t i = 0; i < stored.size(); i++) {
            stored.data<float>()[i] += factor * input.data<float>()[i];
        }
    });
}

void first() {
    std::vector<kv::Key> calls;
    kv::Store store("local");
    store.init(3, Arrays(1, 2).views());
    pull(store, "init");
    push(store, 1, 8);
    pull(store, "push");
    push(store, devices, 1);
    pull(store, "four devices");
    set_updater(store, 2, calls);
    pull(store, "updater set");
    push(store, 1, 1);
    pull(store, "updater push");
    page << "updater calls: " << calls.size() << "\nupdater key: " << calls.front() << '\n';
    pull(store, "four outs", devices);

    const std::vector<kv::Key> keys{5, 7, 9};
    const Arrays arrays(3, 1), out(1, 0), ones(devices, 1), results(devices, 0);
    calls.clear();
    store.init(keys, arrays.views());
    store.push(keys, arrays.views());
    store.pull(keys, arrays.views());
    arrays.show("keys 5 7 9");
    page << "updater order:";
    for (const kv::Key key : calls) {
        page << ' ' << key;
    }
    page << '\n';
    const kv::Tensor same = out.views().front();
    store.pull(keys, {same, same, same});
    out.show("one out of three keys");
    const std::vector<kv::Tensor> values = ones.views(), outs = results.views();
    store.push(keys, {values, values, values});
    store.pull(keys, {outs, outs, outs});
    results.show("list of lists");
}

void second() {
    std::vector<kv::Key> calls;
    kv::Store store("device");
    store.init(3, Arrays(1, -2).views());
    pull(store, "device init");
    push(store, 1, -7);
    pull(store, "device push");
    push(store, 3, 1);
    pull(store, "device three ones");

    const std::vector<kv::Key> keys{7, 11, 13, 17};
    const Arrays arrays(devices, -3), tenths(3, -0.1F);
    store.init(keys, arrays.views());
    for (int gpu = 0; gpu < devices; gpu++) {
        CHECK(store.key_device(keys[static_cast<std::size_t>(gpu)]).id == gpu);
    }
    store.pull(keys, arrays.views());
    arrays.show("device keys");
    const std::vector<kv::Tensor> values = tenths.views();
    store.push(keys, {values, values, values, values});
    store.pull(keys, arrays.views());
    arrays.show("device multi push");
    set_updater(store, 0.01F, calls);
    pull(store, "device updater set");
    push(store, 1, 5);
    pull(store, "device updater push");
}

std::string golden() {
    const std::string here = __FILE__;
    std::ifstream file(here.substr(0, here.rfind('/') + 1) + "../../../tests/golden/tutorial.txt");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

}  // namespace

int main() {
    return run("tutorial_devices", [] {
        skip_without_cuda();
        for (int gpu = 0; gpu < devices; gpu++) {
            gpu_enter(gpu);
            kv::set_stream(kv::cuda(gpu), gpu_stream());
        }
        first();
        second();
        if (page.str() != golden()) {
            check_failed(__FILE__, __LINE__, "another text:\n" + page.str());
        }
    });
}
