// Many threads on one store: no update is lost, and every wait ends.
#include "check.hpp"

#include <cstdlib>
#include <thread>

namespace {

using Numbers = std::vector<std::int64_t>;

constexpr std::size_t threads = 8;

// KV_TEST_SCALE=small asks for a short run, for tools that slow the program down.
int rounds() {
    const char* scale = std::getenv("KV_TEST_SCALE");
    return scale != nullptr && std::strcmp(scale, "small") == 0 ? 20 : 400;
}

template <class Work>
void in_threads(Work work) {
    std::vector<std::thread> all;
    for (std::size_t i = 0; i < threads; i++) {
        all.emplace_back([=] { work(i); });
    }
    for (std::thread& thread : all) {
        thread.join();
    }
}

void add(kv::Key, const kv::ConstTensor& input, kv::Tensor& stored) {
    for (std::size_t i = 0; i < stored.size(); i++) {
        stored.data<std::int64_t>()[i] += input.data<std::int64_t>()[i];
    }
}

// All keys: one per thread, and the last for everybody.
void fill(kv::Store& store) {
    const Numbers zeros(100);
    std::vector<kv::Key> keys;
    for (std::size_t i = 0; i <= threads; i++) {
        keys.push_back(i);
    }
    store.init(keys, std::vector<kv::ConstTensor>(keys.size(), kv::view(zeros)));
    store.set_updater(add);
}

void no_push_is_lost() {
    kv::Store store("local");
    fill(store);
    in_threads([&](std::size_t self) {
        const Numbers ones(100, 1);
        Numbers out(100);
        for (int round = 1; round <= rounds(); round++) {
            store.push({self, threads}, {kv::view(ones), kv::view(ones)});
            store.pull(self, kv::view(out));
            CHECK(out == Numbers(100, round));
        }
    });
    Numbers out(100);
    store.pull(threads, kv::view(out));
    CHECK(out == Numbers(100, static_cast<std::int64_t>(threads) * rounds()));
}

void no_push_with_a_ticket_is_lost() {
    kv::Store store("local", {{"threads", "4"}});
    fill(store);
    in_threads([&](std::size_t self) {
        const Numbers ones(100, 1);
        std::vector<kv::Ticket> sent;
        for (int round = 0; round < rounds(); round++) {
            sent.push_back(store.push({threads, self}, {kv::view(ones), kv::view(ones)},
                                      kv::async(round % 3)));
        }
        for (kv::Ticket& ticket : sent) {
            ticket.wait(patience);
        }
    });
    Numbers out(100);
    store.pull(threads, kv::view(out));
    CHECK(out == Numbers(100, static_cast<std::int64_t>(threads) * rounds()));
}

// A cancelled push of one key has happened in full or not at all, as its ticket says.
void cancelled_pushes_are_counted_right() {
    kv::Store store("local");
    fill(store);
    std::atomic<std::int64_t> applied{0};
    in_threads([&](std::size_t self) {
        for (int round = 0; round < rounds(); round++) {
            const Numbers ones(100, 1);
            kv::Ticket sent = store.push(threads, kv::view(ones), kv::async);
            if ((static_cast<std::size_t>(round) + self) % 2 == 0) {
                sent.cancel();
            }
            try {
                sent.wait(patience);
                applied++;
            } catch (const kv::Error& error) {
                CHECK(error.status() == KV_ERR_CANCELLED);
            }
        }
    });
    Numbers out(100);
    store.pull(threads, kv::view(out));
    CHECK(out == Numbers(100, applied));
}

// Reads are never mixed: one array always holds one number.
void pulls_see_whole_values() {
    kv::Store store("local");
    fill(store);
    store.set_updater(nullptr);
    in_threads([&](std::size_t self) {
        Numbers value(100);
        for (int round = 0; round < rounds(); round++) {
            if (self % 2 == 0) {
                value.assign(100, static_cast<std::int64_t>(self) * 1000000 + round);
                store.push(threads, kv::view(value));
            } else {
                store.pull(threads, kv::view(value));
                CHECK(value == Numbers(100, value[0]));
            }
        }
    });
}

void tickets_and_names_cross_threads() {
    kv::Store store("local");
    const Numbers zeros(100);
    in_threads([&](std::size_t self) {
        for (int round = 0; round < rounds() / 10; round++) {
            const std::string name =
                "layer " + std::to_string(round) + " of " + std::to_string(self);
            store.init(name, kv::view(zeros));
            CHECK(store.name(store.intern(name)) == name);
        }
        store.wait_all(patience);
    });
    CHECK(store.keys().size() == threads * static_cast<std::size_t>(rounds() / 10));
    store.set_updater(add);
    const Numbers ones(100, 1);
    kv::Ticket sent = store.push("layer 0 of 0", kv::view(ones), kv::async);
    std::thread other([sent = std::move(sent)]() mutable { sent.wait(patience); });
    other.join();
    Numbers out(100);
    store.pull("layer 0 of 0", kv::view(out));
    CHECK(out == ones);
}

}  // namespace

int main() {
    return run("threads", [] {
        no_push_is_lost();
        no_push_with_a_ticket_is_lost();
        cancelled_pushes_are_counted_right();
        pulls_see_whole_values();
        tickets_and_names_cross_threads();
    });
}
