// A tour of the store in two chapters. Each step prints one line, "name: value".
//
// A store keeps one array for each key: a parameter of your model, say. Devices push values, such
// as gradients, and pull the result. The words:
//
//   init   gives a key its shape, its type and its first value
//   push   adds up the values that the devices have for a key and merges the sum into the store
//   pull   copies the stored value out, to as many devices as you like
#include <kvstore.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::size_t rows = 2;
constexpr std::size_t columns = 3;

// The values of one device. All arrays here are of one shape.
using Values = std::vector<float>;

Values full(float value) { return Values(rows * columns, value); }

// A tensor is a view: it says where the numbers are, what they are and how they lie, and owns
// nothing. "Device" number `id` is ordinary memory here; the store takes any id.
kv::Tensor on_device(Values& values, int id) {
    return kv::view(values, {rows, columns}).on(kv::cpu(id));
}

// The views of several devices, numbered from 0.
std::vector<kv::Tensor> on_devices(std::vector<Values>& arrays) {
    std::vector<kv::Tensor> views;
    for (Values& values : arrays) {
        views.push_back(on_device(values, static_cast<int>(views.size())));
    }
    return views;
}

// Prints the value that all elements of all arrays have; ends the program if they differ.
void show(const char* name, const std::vector<Values>& arrays) {
    const float value = arrays.front().front();
    const Values wanted = full(value);
    if (std::any_of(arrays.begin(), arrays.end(), [&](const Values& a) { return a != wanted; })) {
        throw std::runtime_error(std::string(name) + ": the elements differ");
    }
    std::printf("%s: %g\n", name, static_cast<double>(value));
}

// An updater decides how a push changes the stored value; without one the sum replaces it. This
// one computes stored += factor * input. It runs once for each key of a push, after the values of
// the devices have been added up into `input`. An exception would make the push fail with its
// message.
void add_scaled(float factor, const kv::ConstTensor& input, const kv::Tensor& stored) {
    const float* sum = input.data<float>();
    float* value = stored.data<float>();
    for (std::size_t i = 0; i < stored.size(); i++) {
        value[i] += factor * sum[i];
    }
}

// One key: init, push and pull, from one device and from four.
void one_key(kv::Store& store) {
    Values a = full(2);
    store.init(3, on_device(a, 0));
    a = full(0);  // the value was copied: the array is ours again when the call is back
    store.pull(3, on_device(a, 0));
    show("init", {a});

    a = full(8);
    store.push(3, on_device(a, 0));
    a = full(0);
    store.pull(3, on_device(a, 0));
    show("push", {a});

    // Four devices have a value each for the same key: the store adds them up.
    std::vector<Values> ones(4, full(1));
    store.push(3, on_devices(ones));
    store.pull(3, on_device(a, 0));
    show("four devices", {a});
}

// The same key with an updater, which stays set from here on and notes its calls in `calls`.
void updater(kv::Store& store, std::vector<kv::Key>& calls) {
    // Setting an updater changes no value.
    store.set_updater([&calls](kv::Key key, const kv::ConstTensor& input, kv::Tensor& stored) {
        calls.push_back(key);
        add_scaled(2.0F, input, stored);
    });
    Values a = full(0);
    store.pull(3, on_device(a, 0));
    show("updater set", {a});

    a = full(1);
    store.push(3, on_device(a, 0));
    store.pull(3, on_device(a, 0));
    show("updater push", {a});
    std::printf("updater calls: %zu\n", calls.size());
    std::printf("updater key: %llu\n", static_cast<unsigned long long>(calls.front()));

    // One call fills the arrays of all devices.
    std::vector<Values> outs(4, full(0));
    store.pull(3, on_devices(outs));
    show("four outs", outs);
}

// Several keys in one call: cheaper than a call for each.
void many_keys(kv::Store& store, std::vector<kv::Key>& calls) {
    const std::vector<kv::Key> keys{5, 7, 9};
    std::vector<Values> arrays(keys.size(), full(1));
    store.init(keys, on_devices(arrays));
    calls.clear();
    store.push(keys, on_devices(arrays));
    store.pull(keys, on_devices(arrays));
    show("keys 5 7 9", arrays);

    // Keys are processed in ascending order, whatever their order in the call.
    std::printf("updater order:");
    for (const kv::Key key : calls) {
        std::printf(" %llu", static_cast<unsigned long long>(key));
    }
    std::printf("\n");

    // One array may be the out of several keys; the last one's value stays in it.
    Values a = full(0);
    const kv::Tensor out = on_device(a, 0);
    store.pull(keys, {out, out, out});
    show("one out of three keys", {a});
}

// Several keys with several devices each: a list of lists.
void list_of_lists(kv::Store& store) {
    std::vector<Values> ones(4, full(1));
    std::vector<Values> results(4, full(0));
    const std::vector<kv::Tensor> values = on_devices(ones);
    const std::vector<kv::Tensor> outs = on_devices(results);
    store.push({5, 7, 9}, {values, values, values});
    store.pull({5, 7, 9}, {outs, outs, outs});
    show("list of lists", results);
}

// The type `device` adds up where the values are; on ordinary memory it works as `local` does.
void device_one_key(kv::Store& store) {
    Values a = full(-2);
    store.init(3, on_device(a, 0));
    a = full(0);
    store.pull(3, on_device(a, 0));
    show("device init", {a});

    a = full(-7);
    store.push(3, on_device(a, 0));
    a = full(0);
    store.pull(3, on_device(a, 0));
    show("device push", {a});

    std::vector<Values> ones(3, full(1));
    store.push(3, on_devices(ones));
    store.pull(3, on_device(a, 0));
    show("device three ones", {a});
}

void device_many_keys(kv::Store& store) {
    const std::vector<kv::Key> keys{7, 11, 13, 17};
    std::vector<Values> arrays(keys.size(), full(-3));
    store.init(keys, on_devices(arrays));
    store.pull(keys, on_devices(arrays));
    show("device keys", arrays);

    std::vector<Values> tenths(3, full(-0.1F));
    store.push(keys, std::vector<std::vector<kv::Tensor>>(keys.size(), on_devices(tenths)));
    store.pull(keys, on_devices(arrays));
    show("device multi push", arrays);
}

void device_updater(kv::Store& store) {
    store.set_updater([](kv::Key, const kv::ConstTensor& input, kv::Tensor& stored) {
        add_scaled(0.01F, input, stored);
    });
    Values a = full(0);
    store.pull(3, on_device(a, 0));
    show("device updater set", {a});

    a = full(5);
    store.push(3, on_device(a, 0));
    store.pull(3, on_device(a, 0));
    show("device updater push", {a});
}

void tour() {
    std::vector<kv::Key> calls;  // outlives the store, whose updater refers to it
    kv::Store local("local");
    one_key(local);
    updater(local, calls);
    many_keys(local, calls);
    list_of_lists(local);

    kv::Store device("device");
    device_one_key(device);
    device_many_keys(device);
    device_updater(device);
}

}  // namespace

int main() {
    try {
        tour();
        return EXIT_SUCCESS;
    } catch (const std::exception& exception) {
        std::fprintf(stderr, "%s\n", exception.what());
        return EXIT_FAILURE;
    }
}
