// kv::set_interrupt: a check ends the waits of its own thread within bounds; later calls work.
#include "check.hpp"

#include <cstdint>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Numbers = std::vector<std::int64_t>;

constexpr kv::Key busy = 1;
constexpr kv::Key idle = 2;

// What a check knows; it ends a call at the question of this number, 0 is never.
struct Host {
    int ends_at;
    int asked = 0;
};

std::int32_t ask(void* context) {
    auto* host = static_cast<Host*>(context);
    return ++host->asked == host->ends_at ? 1 : 0;
}

// A store in which another thread's push of one key stands in its updater.
class Standing {
public:
    Standing() {
        const Numbers ones(4, 1);
        store.init({busy, idle}, {kv::view(ones), kv::view(ones)});
        store.set_updater([this](kv::Key key, const kv::ConstTensor& input, kv::Tensor& stored) {
            if (key == busy) {
                entered_.open();
                CHECK(gate_.pass());
            }
            for (std::size_t i = 0; i < stored.size(); i++) {
                stored.data<std::int64_t>()[i] += input.data<std::int64_t>()[i];
            }
        });
        pusher_ = std::thread([this] {
            const Numbers tens(4, 10);
            store.push(busy, kv::view(tens));
        });
        CHECK(entered_.pass());
    }
    void go_on() {
        gate_.open();
        pusher_.join();
    }

    kv::Store store{"local"};

private:
    Gate entered_;
    Gate gate_;
    std::thread pusher_;
};

// The action ends as cancelled at the second question, long before a test gives up.
template <class Action>
void check_interrupted(Action action) {
    Host host{2};
    const auto began = Clock::now();
    kv::set_interrupt(ask, &host);
    CHECK_THROWS(action(), KV_ERR_CANCELLED, "interrupted");
    kv::set_interrupt(nullptr);
    CHECK(host.asked == 2);
    CHECK(Clock::now() - began < patience / 2);
}

void calls_that_wait_are_cancelled_and_later_ones_work() {
    Standing at;
    const Numbers ones(4, 1);
    Numbers out(4, -1);
    check_interrupted([&] { at.store.pull(busy, kv::view(out)); });
    check_interrupted([&] { at.store.push(busy, kv::view(ones)); });
    check_interrupted([&] { at.store.pushpull(busy, kv::view(ones), kv::view(out)); });
    check_interrupted([&] { at.store.remove(busy); });
    CHECK(out == Numbers(4, -1));
    // A call that does not wait asks nothing, and is not ended.
    Host host{1};
    kv::set_interrupt(ask, &host);
    at.store.push(idle, kv::view(ones));
    at.store.pull(idle, kv::view(out));
    kv::set_interrupt(nullptr);
    CHECK(host.asked == 0 && out == Numbers(4, 2));
    at.go_on();
    at.store.pull(busy, kv::view(out));
    CHECK(out == Numbers(4, 11));
}

void other_threads_wait_on() {
    Standing at;
    Host patient{0};
    Numbers pulled(4);
    std::thread other([&] {
        kv::set_interrupt(ask, &patient);
        at.store.pull(busy, kv::view(pulled));
        kv::set_interrupt(nullptr);
    });
    Numbers out(4);
    check_interrupted([&] { at.store.pull(busy, kv::view(out)); });
    at.go_on();
    other.join();
    CHECK(pulled == Numbers(4, 11));
}

}  // namespace

int main() {
    return run("interrupts", [] {
        calls_that_wait_are_cancelled_and_later_ones_work();
        other_threads_wait_on();
    });
}
