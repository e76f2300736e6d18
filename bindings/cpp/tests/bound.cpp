// bind: lists that are checked once, what they lack, and what ends them.
#include "check.hpp"

#include <thread>

namespace {

using Floats = std::vector<float>;

void calls_use_what_the_arrays_have_then() {
    kv::Store store("local");
    Floats a{1, 2}, b{10, 20}, out(2), other(2);
    store.init({3, "name"}, {kv::view(a), kv::view(a)});
    kv::Bound bound = store.bind({3, "name"}, {{kv::view(a), kv::view(b)}, {kv::view(b)}},
                                 {kv::view(out), kv::view(other)});
    for (float step = 0; step < 3; step++) {
        a[0] = step;
        bound.pushpull();
        CHECK((out == Floats{step + 10, 22}) && other == b);
    }
    a[1] = 5;
    bound.push();
    CHECK(out[1] == 22);
    bound.pull();
    CHECK(out[1] == 25);
    a[1] = 6;
    kv::Ticket pushed = bound.push(kv::async);
    kv::Ticket pulled = bound.pull(kv::async(1));
    pulled.wait();
    pushed.wait();
    CHECK(out[1] == 26);
    bound.pushpull(kv::async).wait();
}

void a_list_may_be_moved_and_outlive_its_store() {
    Floats value{1}, out(1);
    auto store = std::make_unique<kv::Store>("local");
    store->init(1, kv::view(value));
    kv::Bound pushes = store->bind(1, kv::view(value), {}, {});
    kv::Bound pulls = store->bind({}, {}, 1, kv::view(out));
    CHECK_THROWS(pushes.pull(), KV_ERR_INVALID_ARGUMENT, "without outs");
    CHECK_THROWS(pulls.pushpull(), KV_ERR_INVALID_ARGUMENT, "without values");
    value[0] = 4;
    kv::Bound moved = std::move(pushes);
    moved.push();
    pulls.pull();
    CHECK(out[0] == 4);
    CHECK(kv_bound_pull(pulls.raw(), 0, nullptr) == KV_OK);
    store.reset();
    CHECK_THROWS(moved.push(), KV_ERR_CLOSED, "freed");
}

void what_binding_and_calls_refuse() {
    kv::Store store("local");
    Floats value{1, 2}, longer(3);
    store.init(7, kv::view(value));
    CHECK_THROWS(store.bind(8, kv::view(value), {}, {}), KV_ERR_KEY_NOT_FOUND, "bind: key 8");
    CHECK_THROWS(store.bind(7, kv::view(longer), {}, {}), KV_ERR_SHAPE_MISMATCH, "key 7");
    kv::Bound bound = store.bind(7, kv::view(value), kv::view(value));
    store.remove(7);
    CHECK_THROWS(bound.pushpull(), KV_ERR_KEY_NOT_FOUND, "key 7");
    store.init(7, kv::view(longer));
    CHECK_THROWS(bound.push(), KV_ERR_SHAPE_MISMATCH, "key 7");
}

void threads_take_turns() {
    kv::Store store("local");
    std::int64_t one = 1, out = 0;
    store.init(1, kv::view(&out, {}));
    store.set_updater([](kv::Key, const kv::ConstTensor& input, kv::Tensor& stored) {
        *stored.data<std::int64_t>() += *input.data<std::int64_t>();
    });
    kv::Bound bound = store.bind(1, kv::view(&one, {}), kv::view(&out, {}));
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++) {
        threads.emplace_back([&bound] {
            for (int step = 0; step < 200; step++) {
                bound.pushpull();
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    CHECK(out == 800);
}

}  // namespace

int main() {
    return run("bound", [] {
        calls_use_what_the_arrays_have_then();
        a_list_may_be_moved_and_outlive_its_store();
        what_binding_and_calls_refuse();
        threads_take_turns();
    });
}
