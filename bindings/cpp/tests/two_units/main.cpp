// Two translation units include kvstore.hpp: the linker finds each definition once, and what is
// made in one unit works in the other.
#include "../check.hpp"
#include "other.hpp"

int main() {
    return run("two_units", [] {
        std::vector<float> value{1, 2, 3};
        std::vector<float> out(3);
        kv::Store store = other_open();
        store.init(0, kv::view(out));
        other_push(store, kv::view(value)).wait(patience);
        store.pull(0, kv::view(out));
        CHECK(out == value);
        other_set_updater(store);
        CHECK_THROWS(other_push(store, kv::view(value)).wait(patience), KV_ERR_CALLBACK,
                     "thrown in the other unit");
        CHECK_THROWS(other_fail(), KV_ERR_TIMEOUT, "from the other unit");
        CHECK(other_async() == &kv::async);
        CHECK(other_trampoline() == kv::detail::update);
    });
}
