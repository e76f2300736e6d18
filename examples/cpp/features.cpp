// What training programs use beyond push and pull, in one process or in a job of many. Only the type differs:
//
//   features                   one process, the only worker
//   features dist_sync         a worker of a job; `kvstore run` starts them all, and the servers:
//                              kvstore run -n 2 -s 1 -- features dist_sync
//
// All workers make the same calls, with values that depend on their rank. Rank 0 prints "name: value" for each
// result.
#include <kvstore.hpp>
#include <poll.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

namespace {

// All arrays but single numbers are of one shape.
using Values = std::vector<float>;

constexpr std::chrono::seconds patience{60};

Values full(float value) { return Values(3, value); }

// 1 on rank 0, 2 on rank 1, and so on.
float place(const kv::Store& store) { return static_cast<float>(store.rank() + 1); }

void init(kv::Store& store, const char* key, float value) {
    const Values values = full(value);
    store.init(key, kv::view(values));
}

void push(kv::Store& store, const char* key, float value) {
    const Values values = full(value);
    store.push(key, kv::view(values));
}

// Prints on rank 0: the other workers have the same values.
template <class Value>
void report(const kv::Store& store, std::string_view what, const Value& value) {
    if (store.rank() == 0) {
        std::cout << what << ": " << value << '\n';
    }
}

// Prints the first element of a key. Here as elsewhere all workers make the call.
void show(const char* what, kv::Store& store, const char* key) {
    Values out = full(0);
    store.pull(key, kv::view(out));
    report(store, what, out.front());
}

// A program that is built against one release, and runs with another, asks before it calls.
void what_there_is(const kv::Store& store) {
    report(store, "has tickets", kv::capable("tickets"));
    report(store, "has telepathy", kv::capable("telepathy"));
}

// The end of an operation comes to the program: as a descriptor of an event loop, or as a call.
void ends_of_operations(kv::Store& store) {
    init(store, "first", 0);
    const Values value = full(4);

    const kv::Ticket watched = store.push("first", kv::view(value), kv::async);
    watched.watch();
    pollfd wanted{store.event_fd(), POLLIN, 0};
    if (poll(&wanted, 1, 60000) != 1) {
        throw std::runtime_error("the push has not ended");
    }
    const kv::Ended ended = store.next_done();
    report(store, "event", ended.ticket == watched.raw() && ended.status == KV_OK ? "ok" : "failed");

    std::promise<bool> told;
    const kv::Ticket ticket = store.push("first", kv::view(value), kv::async);
    ticket.on_done([&told](const kv::Error* failure) { told.set_value(failure == nullptr); });
    report(store, "told", told.get_future().get() ? "ok" : "failed");
}

// Weights learn by a rule. What is counted beside them is assigned: the sum over the workers.
void rules_of_keys(kv::Store& store) {
    std::vector<std::int64_t> steps{0};
    init(store, "w", 2);
    store.init("steps", kv::view(steps, {}));
    store.set_optimizer_for("steps", "none");
    store.set_optimizer("sgd", {{"learning_rate", 0.5}});
    push(store, "w", place(store));
    steps[0] = 7;
    store.push("steps", kv::view(steps, {}));
    steps[0] = 0;
    store.pull("steps", kv::view(steps, {}));
    show("weight by sgd", store, "w");
    report(store, "steps", steps[0]);
}

// A batch pushes the sum over its samples, and their number: the rule gets the mean over all batches.
void means(kv::Store& store) {
    store.set_weight(8 * place(store));  // batches of 8 samples, 16 samples, ...
    push(store, "w", 24);
    store.clear_weight();
    const kv_round round = store.last_round("w");
    show("weight by a mean", store, "w");
    report(store, "samples", round.total_weight);
    report(store, "contributors", round.contributors);
}

// Rank 0 has a batch more than the others. Rounds do not wait for workers that are done.
void unequal_epochs(kv::Store& store) {
    if (store.rank() == 0) {
        push(store, "w", 1);
    }
    store.done();
    store.resume(patience);  // all go on together, in the next epoch
    show("weight of the epoch", store, "w");
    report(store, "lost", store.num_lost());
}

// Keys and arrays that are checked once: each later call costs little beside the bytes.
void bound_list(kv::Store& store) {
    Values gradient = full(0);
    Values weight = full(0);
    kv::Bound bound = store.bind("w", kv::view(gradient), kv::view(weight));
    for (int step = 1; step <= 3; step++) {
        gradient.assign(gradient.size(), static_cast<float>(step) * place(store));
        bound.pushpull();
        report(store, "bound step " + std::to_string(step), weight.front());
    }
}

// A mask is stored and given out; two of them have no sum.
void opaque_values(kv::Store& store) {
    const std::array<bool, 3> mask{true, false, true};
    std::array<bool, 3> out{};
    store.set_optimizer_for("mask", "none");
    store.init("mask", kv::view(mask));
    store.pull("mask", kv::view(out));
    std::ostringstream bits;
    bits << out[0] << ' ' << out[1] << ' ' << out[2];
    report(store, "mask", bits.str());
    try {
        store.push("mask", {kv::view(mask), kv::view(mask)});
        report(store, "two masks", "summed");
    } catch (const kv::Error& error) {
        report(store, "two masks", error.status() == KV_ERR_UNSUPPORTED ? "unsupported" : error.what());
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

// Takes the model's tensors without their prefix, and leaves the others out. All workers load together: the
// file of rank 0.
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
    report(store, "new keys", store.keys().size() - before);
}

// Gradients of a large norm are scaled down. The norm is that of the sums over the workers.
void clipping(kv::Store& store) {
    const Values gradient{3 * place(store), 4 * place(store), 0};
    store.set_clipping(2.5);
    store.push("w", kv::view(gradient));
    report(store, "norm", store.last_norm().norm);
    show("weight by a clipped step", store, "w");
    store.set_clipping(0);
    store.push("w", kv::view(gradient));
    show("weight by a full step", store, "w");
}

// A group of workers, here of all, has keys and rules of its own.
void a_group(kv::Store& store) {
    std::vector<std::int32_t> ranks(static_cast<std::size_t>(store.num_workers()));
    std::iota(ranks.begin(), ranks.end(), 0);
    kv::Store group = store.group("all", ranks);
    init(group, "w", 0);
    push(group, "w", 4 * place(group));
    show("weight of the group", group, "w");
    show("weight of the job", store, "w");
    group.close(patience);
}

// Workers exchange values without a key: a sum, the value of one worker, and the value of each.
void collective_calls(kv::Store& store) {
    const Values one = full(place(store)), two = full(2 * place(store));
    Values sum = full(0);
    store.allreduce(KV_SUM, {kv::view(one), kv::view(two)}, kv::view(sum));
    report(store, "sum of all", sum.front());

    Values value = one;
    store.broadcast_from(store.num_workers() - 1, kv::view(value));
    report(store, "value of the last", value.front());

    std::vector<Values> all(static_cast<std::size_t>(store.num_workers()), full(0));
    std::vector<kv::Tensor> outs;
    for (Values& out : all) {
        outs.push_back(kv::view(out));
    }
    store.allgather(kv::view(one), outs);
    std::ostringstream text;
    for (const Values& each : all) {
        text << ' ' << each.front();
    }
    report(store, "values of all", text.str().substr(1));
}

}  // namespace

int main(int argc, char** argv) try {
    kv::Store store(argc > 1 ? argv[1] : "local");
    what_there_is(store);
    ends_of_operations(store);
    rules_of_keys(store);
    means(store);
    unequal_epochs(store);
    bound_list(store);
    opaque_values(store);
    a_model_of_another_program(store);
    clipping(store);
    a_group(store);
    collective_calls(store);
    store.barrier(patience);  // no worker leaves while others need its values
    store.close(patience);
    return EXIT_SUCCESS;
} catch (const std::exception& exception) {
    std::cerr << exception.what() << '\n';
    return EXIT_FAILURE;
}
