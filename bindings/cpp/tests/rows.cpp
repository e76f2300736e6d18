// Rows of a key: pushed and pulled, for one key and for several, at once and with tickets.
#include "check.hpp"

namespace {

using Floats = std::vector<float>;
using Ids = std::vector<std::int64_t>;

// A store with a table of three rows under each key.
kv::Store opened(std::initializer_list<kv::AnyKey> keys) {
    const Floats table{0, 1, 10, 11, 20, 21};
    kv::Store store("local");
    for (const kv::AnyKey& key : keys) {
        store.init(key, kv::view(table, {3, 2}));
    }
    return store;
}

Floats pulled(kv::Store& store, const kv::Keys& key) {
    Floats out(6);
    store.pull(key, kv::view(out, {3, 2}));
    return out;
}

void rows_are_replaced_and_copied_out() {
    kv::Store store = opened({"table"});
    const Ids ids{2, 0, 2};
    const Floats rows{1, 2, 3, 4, 5, 6};
    store.push_rows("table", kv::view(ids), kv::view(rows, {3, 2}));
    CHECK((pulled(store, "table") == Floats{3, 4, 10, 11, 6, 8}));
    Floats out(6);
    store.pull_rows("table", kv::view(ids), kv::view(out, {3, 2}));
    CHECK((out == Floats{6, 8, 3, 4, 6, 8}));
}

void several_keys_and_several_tensors_of_a_key() {
    kv::Store store = opened({1, 2});
    const Ids first{0};
    const Ids second{0, 1};
    const Floats one{1, 1};
    const Floats two{2, 2, 3, 3};
    store.push_rows({1, 2}, {{kv::view(first), kv::view(second)}, {kv::view(second)}},
                    {{kv::view(one, {1, 2}), kv::view(two, {2, 2})}, {kv::view(two, {2, 2})}});
    CHECK((pulled(store, 1) == Floats{3, 3, 3, 3, 20, 21}));
    CHECK((pulled(store, 2) == Floats{2, 2, 3, 3, 20, 21}));
    CHECK_THROWS(store.push_rows(1, {kv::view(first), kv::view(first)}, kv::view(one, {1, 2})),
                 KV_ERR_INVALID_ARGUMENT, "1 tensors of rows, but 2 of row ids");
}

void tickets_lend_the_rows() {
    kv::Store store = opened({1});
    Ids ids{1};
    const Floats row{7, 8};
    Floats out(2);
    kv::Ticket push = store.push_rows(1, kv::view(ids), kv::view(row, {1, 2}), kv::async);
    kv::Ticket pull = store.pull_rows(1, kv::view(ids), kv::view(out, {1, 2}), kv::async(3));
    ids[0] = 99;
    pull.wait(patience);
    push.wait(patience);
    CHECK(out == row);
}

void what_is_wrong_is_thrown() {
    kv::Store store = opened({1});
    const Ids beyond{3};
    const Floats row{7, 8};
    CHECK_THROWS(store.push_rows(1, kv::view(beyond), kv::view(row, {1, 2})),
                 KV_ERR_INVALID_ARGUMENT, "row id 3 is out of range");
}

}  // namespace

int main() {
    rows_are_replaced_and_copied_out();
    several_keys_and_several_tensors_of_a_key();
    tickets_lend_the_rows();
    what_is_wrong_is_thrown();
    return 0;
}
