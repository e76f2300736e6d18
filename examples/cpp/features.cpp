// What training programs use beyond push and pull, in a store of one process. Each step prints one line,
// "name: value"; the same calls serve a job of many machines.
#include <kvstore.hpp>
#include <poll.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

namespace {

// All arrays but single numbers are of one shape.
using Values = std::vector<float>;

Values full(float value) { return Values(3, value); }

void init(kv::Store& store, const char* key, float value) {
    const Values values = full(value);
    store.init(key, kv::view(values));
}

void push(kv::Store& store, const char* key, float value) {
    const Values values = full(value);
    store.push(key, kv::view(values));
}

// Prints the value that all elements of a key have.
void show(const char* what, kv::Store& store, const char* key) {
    Values out = full(0);
    store.pull(key, kv::view(out));
    std::printf("%s: %g\n", what, static_cast<double>(out.front()));
}

// A program that is built against one release, and runs with another, asks before it calls.
void what_there_is() {
    std::printf("has tickets: %d\n", kv::capable("tickets") ? 1 : 0);
    std::printf("has telepathy: %d\n", kv::capable("telepathy") ? 1 : 0);
}

// The end of an operation comes to the program: as a call, or as a descriptor of an event loop.
void ends_of_operations() {
    kv::Store store("local");
    init(store, "w", 0);
    const Values value = full(4);

    const kv::Ticket watched = store.push("w", kv::view(value), kv::async);
    watched.watch();
    pollfd wanted{store.event_fd(), POLLIN, 0};
    if (poll(&wanted, 1, 10000) != 1) {
        throw std::runtime_error("the push has not ended");
    }
    const kv::Ended ended = store.next_done();
    std::printf("event: %s\n", ended.ticket == watched.raw() && ended.status == KV_OK ? "ok" : "failed");

    std::promise<bool> told;
    const kv::Ticket ticket = store.push("w", kv::view(value), kv::async);
    ticket.on_done([&told](const kv::Error* failure) { told.set_value(failure == nullptr); });
    std::printf("told: %s\n", told.get_future().get() ? "ok" : "failed");
}

// Weights learn by a rule, and what is counted beside them is assigned.
void rules_of_keys(kv::Store& store) {
    std::vector<std::int64_t> steps{0};
    init(store, "w", 2);
    store.init("steps", kv::view(steps, {}));
    store.set_optimizer_for("steps", "none");
    store.set_optimizer("sgd", {{"learning_rate", 0.5}});
    push(store, "w", 1);
    steps[0] = 7;
    store.push("steps", kv::view(steps, {}));
    steps[0] = 0;
    store.pull("steps", kv::view(steps, {}));
    show("weight by sgd", store, "w");
    std::printf("steps: %d\n", static_cast<int>(steps[0]));
}

// A batch pushes the sum over its samples, and their number: the rule gets the mean over all batches.
void means(kv::Store& store) {
    store.set_weight(8);
    push(store, "w", 24);
    store.clear_weight();
    const kv_round round = store.last_round("w");
    show("weight by a mean", store, "w");
    std::printf("samples: %g\n", round.total_weight);
    std::printf("contributors: %d\n", static_cast<int>(round.contributors));

    // A worker without batches says so, and all go on together in the next epoch.
    store.done();
    store.resume(std::chrono::seconds(10));
    std::printf("lost: %d\n", static_cast<int>(store.num_lost()));
}

// Keys and arrays that are checked once: each later call costs little beside the bytes.
void bound_list(kv::Store& store) {
    Values gradient = full(0);
    Values weight = full(0);
    kv::Bound bound = store.bind("w", kv::view(gradient), kv::view(weight));
    for (int step = 1; step <= 3; step++) {
        gradient.assign(gradient.size(), static_cast<float>(step));
        bound.pushpull();
        std::printf("bound step %d: %g\n", step, static_cast<double>(weight.front()));
    }
}

// A mask is stored and given out; two of them have no sum.
void opaque_values(kv::Store& store) {
    const std::array<bool, 3> mask{true, false, true};
    std::array<bool, 3> out{};
    store.set_optimizer_for("mask", "none");
    store.init("mask", kv::view(mask));
    store.pull("mask", kv::view(out));
    std::printf("mask: %d %d %d\n", out[0], out[1], out[2]);
    try {
        store.push("mask", {kv::view(mask), kv::view(mask)});
        std::printf("two masks: summed\n");
    } catch (const kv::Error& error) {
        std::printf("two masks: %s\n", error.status() == KV_ERR_UNSUPPORTED ? "unsupported" : error.what());
    }
}

// A file of safetensors as another program writes it: length of the header, header, elements.
void write_model(const std::string& path) {
    const std::string header = R"({"model.w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
                               R"("head":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})";
    const Values elements{9, 9, 9, 1};
    std::string length(8, '\0');
    length[0] = static_cast<char>(header.size());
    std::ofstream file(path, std::ios::binary);
    file.exceptions(std::ios::failbit | std::ios::badbit);
    file << length << header;
    file.write(reinterpret_cast<const char*>(elements.data()),
               static_cast<std::streamsize>(elements.size() * sizeof(float)));
}

// Takes the model's tensors without their prefix, and leaves the others out.
void a_model_of_another_program(kv::Store& store) {
    const std::string name = "model-" + std::to_string(getpid()) + ".safetensors";
    const std::filesystem::path path = std::filesystem::temp_directory_path() / name;
    write_model(path.string());
    const std::size_t before = store.keys().size();
    store.load_values(path.string(), [](std::string_view tensor) -> std::optional<std::string> {
        if (tensor.substr(0, 6) != "model.") {
            return std::nullopt;
        }
        return std::string(tensor.substr(6));
    });
    std::filesystem::remove(path);
    show("loaded weight", store, "w");
    std::printf("new keys: %zu\n", store.keys().size() - before);
}

// Values that workers add up without a key, and a group of workers with keys of its own.
void a_group(kv::Store& store) {
    kv::Store group = store.group("alone", {0});
    const Values four = full(4);
    group.init("w", kv::view(four));
    show("weight of the group", group, "w");
    show("weight of the job", store, "w");
    const Values one = full(1);
    const Values two = full(2);
    Values sum = full(0);
    group.allreduce(KV_SUM, {kv::view(one), kv::view(two)}, kv::view(sum));
    std::printf("sum of all: %g\n", static_cast<double>(sum.front()));
    group.close(std::chrono::seconds(10));
}

}  // namespace

int main() try {
    what_there_is();
    ends_of_operations();
    kv::Store store("local");
    rules_of_keys(store);
    means(store);
    bound_list(store);
    opaque_values(store);
    a_model_of_another_program(store);
    a_group(store);
    return EXIT_SUCCESS;
} catch (const std::exception& exception) {
    std::fprintf(stderr, "%s\n", exception.what());
    return EXIT_FAILURE;
}
