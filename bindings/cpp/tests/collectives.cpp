// Collective calls in a local store: reductions, moves, tickets, refusals.
#include "check.hpp"

namespace {

using Floats = std::vector<float>;

void reductions_take_all_values() {
    kv::Store store("local");
    Floats a{1, 5}, b{10, 2}, out(2), other(2);
    store.allreduce(KV_SUM, {kv::view(a), kv::view(b)}, {kv::view(out), kv::view(other)});
    CHECK((out == Floats{11, 7}) && other == out);
    store.reduce(KV_MAX, 0, {kv::view(a), kv::view(b)}, kv::view(out));
    CHECK((out == Floats{10, 5}));
    store.allreduce(KV_MEAN, {kv::view(a), kv::view(b)}, kv::view(out), kv::async).wait();
    CHECK((out == Floats{5.5F, 3.5F}));
    store.reduce(KV_MIN, 0, {kv::view(a), kv::view(b)}, kv::view(out), kv::async).wait();
    CHECK((out == Floats{1, 2}));
    store.reduce_scatter(KV_SUM, kv::view(a), kv::view(out));
    CHECK(out == a);
}

void values_are_moved() {
    kv::Store store("local");
    Floats a{1, 5}, out(2);
    const auto took = [&](kv::Ticket ticket) {
        ticket.wait();
        CHECK(out == a);
        out = {0, 0};
    };
    store.broadcast_from(0, {kv::view(a), kv::view(out)});
    CHECK(out == a);
    took(store.broadcast_from(0, {kv::view(a), kv::view(out)}, kv::async));
    store.allgather(kv::view(a), kv::view(out));
    took(store.allgather(kv::view(a), kv::view(out), kv::async));
    store.gather(0, kv::view(a), kv::view(out));
    took(store.gather(0, kv::view(a), kv::view(out), kv::async));
    store.scatter(0, kv::view(a), kv::view(out));
    took(store.scatter(0, kv::view(a), kv::view(out), kv::async));
    store.all_to_all(kv::view(a), kv::view(out));
    took(store.all_to_all(kv::view(a), kv::view(out), kv::async));
    took(store.reduce_scatter(KV_SUM, kv::view(a), kv::view(out), kv::async));
}

void refusals_are_errors() {
    kv::Store store("local");
    Floats a{1, 5}, out(2), longer(3);
    CHECK_THROWS(store.allreduce(KV_SUM, kv::view(a), kv::view(longer)), KV_ERR_SHAPE_MISMATCH, "[2]");
    CHECK_THROWS(store.reduce(KV_SUM, 1, kv::view(a), kv::view(out)), KV_ERR_INVALID_ARGUMENT, "root");
    CHECK_THROWS(store.scatter(0, kv::view(a), {kv::view(out), kv::view(longer)}),
                 KV_ERR_INVALID_ARGUMENT, "2 tensors");
    CHECK((out == Floats{0, 0}));
}

}  // namespace

int main() {
    return run("collectives", [] {
        reductions_take_all_values();
        values_are_moved();
        refusals_are_errors();
    });
}
