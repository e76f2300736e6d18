// Updaters: what may be one, what it sees, and what happens when it throws.
#include "check.hpp"

#include <memory>
#include <stdexcept>

namespace {

using Floats = std::vector<float>;

float pulled(kv::Store& store, const kv::Keys& key) {
    Floats out(3);
    store.pull(key, kv::view(out));
    return out[0];
}

void add(kv::Key, const kv::ConstTensor& input, kv::Tensor& stored) {
    for (std::size_t i = 0; i < stored.size(); i++) {
        stored.data<float>()[i] += input.data<float>()[i];
    }
}

struct Scale {
    float factor;
    void operator()(kv::Key, const kv::ConstTensor& input, const kv::Tensor& stored) const {
        for (std::size_t i = 0; i < stored.size(); i++) {
            stored.data<float>()[i] += factor * input.data<float>()[i];
        }
    }
};

void everything_callable_may_be_an_updater() {
    const Floats ones(3, 1.0F);
    kv::Store store("local");
    store.init(0, kv::view(ones));
    store.set_updater(add);
    store.push(0, {kv::view(ones), kv::view(ones)});
    CHECK(pulled(store, 0) == 3);
    store.set_updater(Scale{10});
    store.push(0, kv::view(ones));
    CHECK(pulled(store, 0) == 13);
    store.set_updater([](kv::Key, kv::ConstTensor input, kv::Tensor stored) {  // by value
        stored.data<float>()[0] = -input.data<float>()[0];
    });
    store.push(0, kv::view(ones));
    CHECK(pulled(store, 0) == -1);
    store.set_updater([](auto, const auto& input, auto& stored) { add(0, input, stored); });
    store.push(0, kv::view(ones));
    CHECK(pulled(store, 0) == 0);
    int calls = 0;
    auto counts = [&calls](kv::Key, const kv::ConstTensor&, kv::Tensor&) mutable { calls++; };
    store.set_updater(std::ref(counts));
    store.push(0, kv::view(ones));
    CHECK(calls == 1 && pulled(store, 0) == 0);
    store.set_updater(nullptr);  // assign again
    store.push(0, kv::view(ones));
    CHECK(calls == 1 && pulled(store, 0) == 1);
    store.set_updater({});
    store.push(0, {kv::view(ones), kv::view(ones)});
    CHECK(pulled(store, 0) == 2);
}

void an_updater_sees_key_shape_and_sum() {
    Floats value(6, 1.0F);
    kv::Store store("local");
    const kv::Key name = store.intern("name");
    store.init({9, 5, name}, {kv::view(value, {2, 3}), kv::view(value), kv::view(value, {6, 1})});
    std::vector<kv::Key> seen;
    store.set_updater([&](kv::Key key, const kv::ConstTensor& input, kv::Tensor& stored) {
        seen.push_back(key);
        CHECK(input.dtype() == KV_F32 && stored.dtype() == KV_F32);
        CHECK(input.size() == 6 && stored.size() == 6);
        CHECK(input.shape().size() == stored.shape().size());
        CHECK(stored.shape()[0] == (key == 9 ? 2 : 6));
        CHECK(input.data<float>()[5] == (key == 5 ? 1.0F : 2.0F));
        CHECK(stored.data<float>()[5] == 1.0F);
    });
    store.push({name, 9, 5, 9, name},
               {kv::view(value, {6, 1}), kv::view(value, {2, 3}), kv::view(value),
                kv::view(value, {2, 3}), kv::view(value, {6, 1})});
    CHECK((seen == std::vector<kv::Key>{5, 9, name}));
}

void an_exception_becomes_the_error_of_the_push() {
    const Floats ones(3, 1.0F);
    kv::Store store("local");
    store.init({1, 2, 3}, {kv::view(ones), kv::view(ones), kv::view(ones)});
    store.set_updater([](kv::Key key, const kv::ConstTensor& input, kv::Tensor& stored) {
        add(key, input, stored);
        if (key == 2) {
            throw std::out_of_range("gradient of 1e9 is out of range");
        }
    });
    const std::vector<kv::ConstTensor> three(3, kv::view(ones));
    const auto all = [&] { store.push({3, 2, 1}, three); };
    CHECK_THROWS(all(), KV_ERR_CALLBACK, "gradient of 1e9 is out of range");
    CHECK_THROWS(all(), KV_ERR_CALLBACK, "key 2");
    // Keys before stay applied, this one keeps what it half-changed, those after have nothing.
    CHECK(pulled(store, 1) == 3 && pulled(store, 2) == 3 && pulled(store, 3) == 1);
    store.push(1, kv::view(ones));
    CHECK(pulled(store, 1) == 4);
}

void exceptions_of_other_types_are_caught() {
    const Floats ones(3, 1.0F);
    kv::Store store("local");
    store.init(0, kv::view(ones));
    store.set_updater([](kv::Key, const kv::ConstTensor&, kv::Tensor&) { throw 42; });
    CHECK_THROWS(store.push(0, kv::view(ones)), KV_ERR_CALLBACK, "exception");
    store.set_updater([](kv::Key, const kv::ConstTensor& input, kv::Tensor&) {
        static_cast<void>(input.data<double>());
    });
    CHECK_THROWS(store.push(0, kv::view(ones)), KV_ERR_CALLBACK, "element type");
    store.set_updater([](kv::Key, const kv::ConstTensor&, kv::Tensor&) { throw std::bad_alloc(); });
    CHECK_THROWS(store.push(0, kv::view(ones)), KV_ERR_CALLBACK, "bad_alloc");
    CHECK(pulled(store, 0) == 1);
}

void a_message_is_told_once() {
    const Floats ones(3, 1.0F);
    kv::Store store("local");
    store.init(0, kv::view(ones));
    store.set_updater([](kv::Key, const kv::ConstTensor&, kv::Tensor&) {
        throw std::runtime_error("the first reason");
    });
    CHECK_THROWS(store.push(0, kv::view(ones)), KV_ERR_CALLBACK, "the first reason");
    store.set_updater([](kv::Key, const kv::ConstTensor&, kv::Tensor&) {
        throw std::runtime_error("another");
    });
    try {
        store.push(0, kv::view(ones));
        check_failed(__FILE__, __LINE__, "the push succeeded");
    } catch (const kv::Error& error) {
        CHECK(std::strstr(error.what(), "another") != nullptr);
        CHECK(std::strstr(error.what(), "the first reason") == nullptr);
    }
}

void undo_restores_the_value() {
    const Floats ones(3, 1.0F);
    kv::Store store("local", {{"updater_undo", "yes"}});
    store.init({1, 2}, {kv::view(ones), kv::view(ones)});
    store.set_updater([](kv::Key key, const kv::ConstTensor& input, kv::Tensor& stored) {
        add(key, input, stored);
        if (key == 2) {
            throw std::runtime_error("undo this");
        }
    });
    const std::vector<kv::ConstTensor> two(2, kv::view(ones));
    CHECK_THROWS(store.push({1, 2}, two), KV_ERR_CALLBACK, "undo this");
    CHECK(pulled(store, 1) == 2 && pulled(store, 2) == 1);
}

void the_store_refuses_calls_from_inside() {
    const Floats ones(3, 1.0F);
    kv::Store store("local");
    kv::Store other("local");
    store.init("w", kv::view(ones));
    other.init(0, kv::view(ones));
    const kv::Key key = store.intern("w");
    int calls = 0;
    store.set_updater([&](kv::Key inside, const kv::ConstTensor& input, kv::Tensor&) {
        calls++;
        Floats out(3);
        const auto refused = KV_ERR_REENTRANT;
        CHECK_THROWS(store.push(inside, input), refused, "");
        CHECK_THROWS(store.pull(inside, kv::view(out)), refused, "");
        CHECK_THROWS(store.init(1, input), refused, "");
        CHECK_THROWS(store.set_updater(add), refused, "");
        CHECK_THROWS(store.set_optimizer("sgd"), refused, "");
        CHECK_THROWS(store.wait_all(patience), refused, "");
        CHECK_THROWS(store.close(patience), refused, "");
        CHECK_THROWS(store.keys(), refused, "");
        // These are allowed, and so is every call of another store.
        CHECK(store.name(inside) == "w" && store.key_info(inside).shape[0] == 3);
        CHECK(store.type() == "local" && store.rank() == 0 && store.num_workers() == 1);
        CHECK(store.role() == KV_ROLE_WORKER);
        other.push(0, {input, input});
        store.push(inside, input);  // not caught: the outer push fails with it
    });
    CHECK_THROWS(store.push(key, kv::view(ones)), KV_ERR_CALLBACK, "updater");
    kv::Ticket sent = store.push(key, kv::view(ones), kv::async);
    CHECK_THROWS(sent.wait(patience), KV_ERR_CALLBACK, "updater");
    CHECK(calls == 2 && pulled(other, 0) == 2);
    store.set_updater(nullptr);
    store.push(key, kv::view(ones));
    CHECK(pulled(store, key) == 1);
}

void an_updater_lives_as_long_as_it_is_set() {
    const Floats ones(3, 1.0F);
    const auto state = std::make_shared<int>(0);
    const auto updater = [state](kv::Key, const kv::ConstTensor&, kv::Tensor&) { ++*state; };
    {
        kv::Store store("local");
        store.init(0, kv::view(ones));
        store.set_updater(updater);
        CHECK(state.use_count() == 3);  // here, in `updater`, and in the store
        store.push(0, kv::view(ones));
        CHECK(*state == 1);
        store.set_updater(add);
        CHECK(state.use_count() == 2);
        store.set_updater(updater);
        store.set_updater(updater);
        CHECK(state.use_count() == 3);
        store.close(patience);
        CHECK_THROWS(store.set_updater(updater), KV_ERR_CLOSED, "");
    }
    CHECK(state.use_count() == 2);
    kv::Store gone("local");
    const kv::Store owner = std::move(gone);
    CHECK_THROWS(gone.set_updater(updater), KV_ERR_INVALID_ARGUMENT, "");
    CHECK(state.use_count() == 2);
}

// Also when a thread of the library has just been at work with it.
void an_updater_is_gone_with_its_store() {
    const Floats ones(3, 1.0F);
    for (int i = 0; i < 5000; i++) {
        const auto state = std::make_shared<int>(0);
        {
            kv::Store store("local");
            store.init(0, kv::view(ones));
            store.set_updater([state](kv::Key, const kv::ConstTensor&, kv::Tensor&) { ++*state; });
            store.push(0, kv::view(ones), kv::async).wait(patience);
        }
        CHECK(state.use_count() == 1 && *state == 1);
    }
}

void an_updater_may_abort_its_store() {
    const Floats ones(3, 1.0F);
    kv::Store store("local");
    store.init(0, kv::view(ones));
    store.set_updater([&](kv::Key, const kv::ConstTensor&, kv::Tensor&) { store.abort(); });
    try {
        store.push(0, kv::view(ones));  // it was at work: either way of ending is right
    } catch (const kv::Error& error) {
        CHECK(error.status() == KV_ERR_CLOSED);
    }
    CHECK_THROWS(store.push(0, kv::view(ones)), KV_ERR_CLOSED, "");
}

}  // namespace

int main() {
    return run("updaters", [] {
        everything_callable_may_be_an_updater();
        an_updater_sees_key_shape_and_sum();
        an_exception_becomes_the_error_of_the_push();
        exceptions_of_other_types_are_caught();
        a_message_is_told_once();
        undo_restores_the_value();
        the_store_refuses_calls_from_inside();
        an_updater_lives_as_long_as_it_is_set();
        an_updater_is_gone_with_its_store();
        an_updater_may_abort_its_store();
    });
}
