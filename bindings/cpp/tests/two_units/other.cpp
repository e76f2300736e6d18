// The second translation unit with kvstore.hpp.
#include "other.hpp"

#include <stdexcept>

kv::Store other_open() { return kv::Store("local", {{"threads", "1"}}); }

kv::Ticket other_push(kv::Store& store, kv::ConstTensor value) {
    return store.push(0, value, kv::async);
}

void other_set_updater(kv::Store& store) {
    store.set_updater([](kv::Key, const kv::ConstTensor&, kv::Tensor&) {
        throw std::runtime_error("thrown in the other unit");
    });
}

void other_fail() { throw kv::Error(KV_ERR_TIMEOUT, "from the other unit"); }

const void* other_async() { return &kv::async; }

kv_updater other_trampoline() { return kv::detail::update; }
