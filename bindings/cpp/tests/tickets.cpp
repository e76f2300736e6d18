// Operations under way: waiting, cancelling, moving, and the loan of the buffers.
#include "check.hpp"

#include <poll.h>

#include <stdexcept>
#include <thread>

namespace {

using namespace std::chrono_literals;
using Floats = std::vector<float>;

static_assert(!std::is_copy_constructible_v<kv::Ticket> && !std::is_copy_assignable_v<kv::Ticket>);
static_assert(std::is_nothrow_move_constructible_v<kv::Ticket>);
static_assert(std::is_nothrow_move_assignable_v<kv::Ticket>);
static_assert(std::is_nothrow_destructible_v<kv::Ticket>);

// A store with key 0, whose updater adds, and can be held up: it says that it has begun, and goes
// on when the gate opens.
struct Held {
    Gate begun;
    Gate gate;
    Floats value{0, 0, 0};
    kv::Store store;

    explicit Held(const kv::Config& config = {}) : store("local", config) {
        store.init({0, 1}, {kv::view(value), kv::view(value)});
        store.set_updater([this](kv::Key, const kv::ConstTensor& input, kv::Tensor& stored) {
            begun.open();
            CHECK(gate.pass());
            for (std::size_t i = 0; i < stored.size(); i++) {
                stored.data<float>()[i] += input.data<float>()[i];
            }
        });
    }
    ~Held() { gate.open(); }

    float pulled(int key) {
        store.pull(key, kv::view(value));
        return value[0];
    }
};

void a_ticket_gives_the_result() {
    kv::Store store("local");
    const Floats pushed{1, 2, 3};
    Floats out(3);
    store.init(0, kv::view(out));
    kv::Ticket sent = store.push(0, kv::view(pushed), kv::async);
    CHECK(sent.raw() != 0);
    sent.wait(30s);
    sent.wait();
    sent.wait(0s);  // again, from memory
    CHECK(sent.done());
    kv::Ticket got = store.pull(0, kv::view(out), kv::async(-5));
    got.wait(patience);
    CHECK(out == pushed && got.raw() > sent.raw());
    sent.cancel();  // too late to change anything
    store.pull(0, kv::view(out));
    CHECK(out == pushed);
}

void a_thread_sees_its_own_pushes() {
    kv::Store store("local");
    std::vector<Floats> pushed(50, Floats(1000));
    Floats out(1000);
    store.init(0, kv::view(out));
    std::vector<kv::Ticket> tickets;
    for (std::size_t i = 0; i < pushed.size(); i++) {
        pushed[i][999] = static_cast<float>(i);
        // A later push is more urgent, and yet comes later: it has the same key.
        tickets.push_back(store.push(0, kv::view(pushed[i]), kv::async(static_cast<int>(i))));
    }
    store.pull(0, kv::view(out));
    CHECK(out == pushed.back());
    for (kv::Ticket& ticket : tickets) {
        CHECK(ticket.done());
    }
}

void waiting_can_time_out() {
    Held held;
    const Floats pushed{1, 2, 3};
    kv::Ticket sent = held.store.push(0, kv::view(pushed), kv::async);
    CHECK(held.begun.pass());
    CHECK(!sent.done());
    const auto before = std::chrono::steady_clock::now();
    CHECK_THROWS(sent.wait(20ms), KV_ERR_TIMEOUT, "");
    CHECK(std::chrono::steady_clock::now() - before >= 20ms);
    CHECK_THROWS(sent.wait(0s), KV_ERR_TIMEOUT, "");
    CHECK_THROWS(sent.wait(-1s), KV_ERR_TIMEOUT, "");  // a deadline that has passed
    CHECK_THROWS(held.store.wait_all(1ms), KV_ERR_TIMEOUT, "");
    std::thread opener([&] {
        std::this_thread::sleep_for(50ms);
        held.gate.open();
    });
    sent.wait(patience);
    opener.join();
    CHECK(sent.done() && held.pulled(0) == 1);
}

void failures_come_with_the_ticket() {
    kv::Store store("local");
    Floats value(3);
    store.init(0, kv::view(value));
    store.set_updater([](kv::Key, const kv::ConstTensor&, kv::Tensor&) {
        throw std::runtime_error("too steep");
    });
    kv::Ticket sent = store.push(0, kv::view(value), kv::async);
    CHECK_THROWS(sent.wait(patience), KV_ERR_CALLBACK, "too steep");
    CHECK_THROWS(sent.wait(patience), KV_ERR_CALLBACK, "too steep");
    CHECK_THROWS(sent.done(), KV_ERR_CALLBACK, "too steep");
    sent.cancel();
    store.wait_all(patience);  // it has been told
    CHECK_THROWS(store.push(5, kv::view(value), kv::async), KV_ERR_KEY_NOT_FOUND, "key 5");
}

void failures_nobody_waited_for_are_kept() {
    kv::Store store("local");
    Floats value(3);
    store.init(0, kv::view(value));
    store.set_updater([](kv::Key, const kv::ConstTensor&, kv::Tensor&) {
        throw std::runtime_error("forgotten");
    });
    const kv_ticket number = store.push(0, kv::view(value), kv::async).release();
    CHECK_THROWS(store.wait_all(patience), KV_ERR_CALLBACK, "forgotten");
    store.wait_all(patience);
    kv::Ticket again(store.raw(), number);
    CHECK_THROWS(again.wait(0s), KV_ERR_CALLBACK, "forgotten");
}

void a_cancelled_push_is_withdrawn() {
    Held held;
    const Floats pushed{1, 2, 3};
    kv::Ticket first = held.store.push(0, kv::view(pushed), kv::async);
    CHECK(held.begun.pass());
    kv::Ticket second = held.store.push(0, kv::view(pushed), kv::async);
    second.cancel();
    CHECK_THROWS(second.wait(patience), KV_ERR_CANCELLED, "");
    second.cancel();
    held.gate.open();
    first.wait(patience);
    CHECK(held.pulled(0) == 1);
}

// Cancelled while an updater is at a key, the push stops after that key; if it was the last one,
// the push has taken effect in full.
void a_push_at_work_ends_with_its_key() {
    for (const bool both : {false, true}) {
        Held held;
        const Floats pushed{1, 2, 3};
        std::vector<kv::Key> keys{0};
        std::vector<kv::ConstTensor> values{kv::view(pushed)};
        if (both) {
            keys.push_back(1);
            values.push_back(kv::view(pushed));
        }
        kv::Ticket sent = held.store.push(keys, values, kv::async);
        CHECK(held.begun.pass());
        std::thread opener([&] {
            std::this_thread::sleep_for(50ms);
            held.gate.open();
        });
        sent.cancel();
        opener.join();
        if (both) {
            CHECK_THROWS(sent.wait(patience), KV_ERR_CANCELLED, "");
        } else {
            sent.wait(patience);
        }
        CHECK(held.pulled(0) == 1 && held.pulled(1) == 0);
    }
}

void tickets_move() {
    Held held;
    const Floats pushed{1, 2, 3};
    kv::Ticket first = held.store.push(0, kv::view(pushed), kv::async);
    CHECK(held.begun.pass());
    const kv_ticket number = first.raw();
    kv::Ticket moved = std::move(first);
    CHECK(moved.raw() == number && !moved.done());
    first = held.store.push(0, kv::view(pushed), kv::async);
    const kv_ticket second = first.raw();
    // What was in `first` is withdrawn; its new guest goes on.
    kv::Ticket third = held.store.push(0, kv::view(pushed), kv::async);
    first = std::move(third);
    CHECK(kv_wait(held.store.raw(), second, 0) == KV_ERR_CANCELLED);
    kv::Ticket& itself = first;
    first = std::move(itself);
    held.gate.open();
    moved.wait(patience);
    first.wait(patience);
    CHECK(held.pulled(0) == 2);

    kv::Ticket empty;
    CHECK(empty.raw() == 0);
    CHECK_THROWS(empty.wait(0s), KV_ERR_INVALID_ARGUMENT, "");
    CHECK_THROWS(empty.cancel(), KV_ERR_INVALID_ARGUMENT, "");
    empty = std::move(moved);
    CHECK(empty.done());
}

void a_released_ticket_goes_on() {
    Held held;
    const Floats pushed{1, 2, 3};
    {
        kv::Ticket sent = held.store.push(0, kv::view(pushed), kv::async);
        CHECK(sent.release() == sent.raw());
    }
    held.gate.open();
    held.store.wait_all(patience);
    CHECK(held.pulled(0) == 1);
}

void foreign_tickets_are_refused() {
    kv::Store store("local");
    kv::Store other("local");
    Floats value(3);
    store.init(0, kv::view(value));
    kv::Ticket sent = store.push(0, kv::view(value), kv::async);
    sent.wait(patience);
    kv::Ticket foreign(other.raw(), sent.raw());
    CHECK_THROWS(foreign.wait(0s), KV_ERR_TICKET, "");
    CHECK_THROWS(foreign.cancel(), KV_ERR_TICKET, "");
    kv::Ticket never(store.raw(), sent.raw() + 1);
    CHECK_THROWS(never.wait(0s), KV_ERR_TICKET, "");
}

// The loan ends with the ticket: an exception leaves the block while an updater reads the buffer.
void a_ticket_dropped_by_an_exception_ends_the_loan() {
    Held held;
    std::thread opener;
    std::atomic<bool> caught{false};
    try {
        Floats pushed{1, 2, 3};
        const kv::Ticket sent = held.store.push(0, kv::view(pushed), kv::async);
        CHECK(held.begun.pass());
        opener = std::thread([&] {
            std::this_thread::sleep_for(50ms);
            CHECK(!caught);  // the destructor waits for the updater
            held.gate.open();
        });
        throw std::logic_error("something else went wrong");
    } catch (const std::logic_error& error) {
        caught = true;
        CHECK(std::string(error.what()) == "something else went wrong");
    }
    opener.join();
    CHECK(held.pulled(0) == 1);  // it was at work: the push took effect
}

void a_waiting_operation_is_withdrawn_by_an_exception() {
    Held held;
    const Floats pushed{1, 2, 3};
    kv::Ticket first = held.store.push(0, kv::view(pushed), kv::async);
    CHECK(held.begun.pass());
    try {
        const Floats short_lived{10, 10, 10};
        Floats out(3);
        const kv::Ticket second = held.store.push(0, kv::view(short_lived), kv::async);
        const kv::Ticket third = held.store.pull(0, kv::view(out), kv::async);
        throw std::logic_error("before they began");
    } catch (const std::logic_error&) {
    }
    held.gate.open();
    first.wait(patience);
    CHECK(held.pulled(0) == 1);
}

// An updater that does not return in time: the destructor gives up, and the buffer stays lent.
void a_destructor_waits_no_longer_than_the_timeout() {
    Held held(kv::Config{{"timeout_ms", "50"}});
    const Floats pushed{1, 2, 3};
    kv_ticket number = 0;
    {
        kv::Ticket sent = held.store.push(0, kv::view(pushed), kv::async);
        CHECK(held.begun.pass());
        number = sent.raw();
        CHECK_THROWS(sent.cancel(), KV_ERR_TIMEOUT, "");
    }
    CHECK(kv_wait(held.store.raw(), number, 0) == KV_ERR_TIMEOUT);
    held.gate.open();
    CHECK(kv_wait(held.store.raw(), number, 60000) != KV_ERR_TIMEOUT);
    CHECK(held.pulled(0) == 1);
}

void a_destructor_cancels_what_timed_out() {
    Held held;
    const Floats pushed{1, 2, 3};
    kv::Ticket first = held.store.push(0, kv::view(pushed), kv::async);
    CHECK(held.begun.pass());
    kv_ticket number = 0;
    {
        kv::Ticket second = held.store.push(0, kv::view(pushed), kv::async);
        number = second.raw();
        CHECK_THROWS(second.wait(1ms), KV_ERR_TIMEOUT, "");
        CHECK(!second.done());
    }
    CHECK(kv_wait(held.store.raw(), number, 0) == KV_ERR_CANCELLED);
    held.gate.open();
    first.wait(patience);
    CHECK(held.pulled(0) == 1);
}

void a_ticket_that_is_done_may_outlive_its_store() {
    const Floats value{1, 2, 3};
    std::vector<kv::Ticket> tickets;
    {
        kv::Store store("local");
        store.init(0, kv::view(value));
        for (int i = 0; i < 3; i++) {
            tickets.push_back(store.push(0, kv::view(value), kv::async));
        }
        tickets[0].wait(patience);
        tickets[1].wait(patience);
        tickets[2].wait(patience);
        CHECK(tickets[1].done());
        tickets[2].cancel();
    }
    tickets.clear();  // calls nothing: the store is gone
    CHECK(tickets.empty());
}

void keys_do_not_wait_for_each_other() {
    Held held;
    const Floats pushed{1, 2, 3};
    kv::Ticket sent = held.store.push(0, kv::view(pushed), kv::async);
    CHECK(held.begun.pass());
    Floats out(3);
    held.store.pull(1, kv::view(out));
    CHECK(out == Floats(3) && !sent.done());
    held.gate.open();
}

void urgent_operations_overtake() {
    Held held(kv::Config{{"threads", "1"}});
    const Floats pushed{1, 2, 3};
    std::vector<kv::Key> order;
    held.store.init({2, 3, 4}, {kv::view(pushed), kv::view(pushed), kv::view(pushed)});
    held.store.set_updater([&](kv::Key key, const kv::ConstTensor&, kv::Tensor&) {
        held.begun.open();
        CHECK(held.gate.pass());
        order.push_back(key);
    });
    kv::Ticket first = held.store.push(0, kv::view(pushed), kv::async);
    CHECK(held.begun.pass());
    std::vector<kv::Ticket> queued;
    queued.push_back(held.store.push(1, kv::view(pushed), kv::async));
    queued.push_back(held.store.push(2, kv::view(pushed), kv::async(-3)));
    queued.push_back(held.store.push(3, kv::view(pushed), kv::async(7)));
    queued.push_back(held.store.pushpull(4, kv::view(pushed), kv::view(held.value), kv::async(2)));
    held.gate.open();
    held.store.wait_all(patience);
    CHECK((order == std::vector<kv::Key>{0, 3, 4, 1, 2}));
}

// What a function has been told, for a thread that waits.
struct Told {
    Gate gate;
    std::string text = "nothing";

    kv::DoneCallback callback() {
        return [this](const kv::Error* failure) {
            text = failure == nullptr ? "success" : failure->what();
            gate.open();
        };
    }
    bool has(const char* part) {
        CHECK(gate.pass());
        return text.find(part) != std::string::npos;
    }
};

void an_end_is_told() {
    Held held;
    const Floats pushed{1, 2, 3};
    Told first, second, again;
    kv::Ticket working = held.store.push(0, kv::view(pushed), kv::async);
    CHECK(held.begun.pass());
    working.on_done(first.callback());
    working.on_done([](const kv::Error*) { throw std::runtime_error("is lost"); });
    {
        const kv::Ticket waiting = held.store.push(0, kv::view(pushed), kv::async);
        waiting.on_done(second.callback());
    }
    CHECK(second.has("cancelled"));
    CHECK(first.text == "nothing");
    CHECK_THROWS(working.on_done({}), KV_ERR_INVALID_ARGUMENT, "empty");
    held.gate.open();
    CHECK(first.has("success"));
    working.on_done(again.callback());
    CHECK(again.text == "success");  // here and now
    held.store.set_updater([](kv::Key, const kv::ConstTensor&, kv::Tensor&) {
        throw std::runtime_error("too steep");
    });
    Told failed;
    const kv::Ticket failing = held.store.push(0, kv::view(pushed), kv::async);
    failing.on_done(failed.callback());
    CHECK(failed.has("too steep"));
}

void a_function_must_not_wait() {
    kv::Store store("local");
    Floats value(3);
    Gate called;
    store.init(0, kv::view(value));
    const kv::Ticket sent = store.push(0, kv::view(value), kv::async);
    sent.on_done([&](const kv::Error*) {
        CHECK_THROWS(store.pull(0, kv::view(value)), KV_ERR_REENTRANT, "on_done");
        store.pull(0, kv::view(value), kv::async).release();
        called.open();
    });
    CHECK(called.pass());
    store.wait_all(patience);
}

void ended_operations_are_polled() {
    Held held;
    const Floats pushed{1, 2, 3};
    kv::Ticket sent = held.store.push(0, kv::view(pushed), kv::async);
    pollfd asked{held.store.event_fd(), POLLIN, 0};
    sent.watch();
    CHECK(poll(&asked, 1, 0) == 0 && held.store.next_done().ticket == 0);
    held.gate.open();
    CHECK(poll(&asked, 1, 60'000) == 1);
    const kv::Ended ended = held.store.next_done();
    CHECK(ended.ticket == sent.raw() && ended.status == KV_OK);
    CHECK(poll(&asked, 1, 0) == 0 && held.store.next_done().ticket == 0);
}

}  // namespace

int main() {
    return run("tickets", [] {
        a_ticket_gives_the_result();
        a_thread_sees_its_own_pushes();
        waiting_can_time_out();
        failures_come_with_the_ticket();
        failures_nobody_waited_for_are_kept();
        a_cancelled_push_is_withdrawn();
        a_push_at_work_ends_with_its_key();
        tickets_move();
        a_released_ticket_goes_on();
        foreign_tickets_are_refused();
        a_ticket_dropped_by_an_exception_ends_the_loan();
        a_waiting_operation_is_withdrawn_by_an_exception();
        a_destructor_waits_no_longer_than_the_timeout();
        a_destructor_cancels_what_timed_out();
        a_ticket_that_is_done_may_outlive_its_store();
        keys_do_not_wait_for_each_other();
        urgent_operations_overtake();
        an_end_is_told();
        a_function_must_not_wait();
        ended_operations_are_polled();
    });
}
