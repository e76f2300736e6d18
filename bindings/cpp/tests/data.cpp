// init, push, pull, pushpull, broadcast: one key, lists, lists of lists, and what is refused.
#include "check.hpp"

namespace {

using Floats = std::vector<float>;

Floats filled(float value) { return Floats(6, value); }

kv::Tensor of(Floats& data) { return kv::view(data, {2, 3}); }
kv::ConstTensor of(const Floats& data) { return kv::view(data, {2, 3}); }

float pulled(kv::Store& store, const kv::Keys& key) {
    Floats out(6);
    store.pull(key, of(out));
    CHECK(out == filled(out[0]));
    return out[0];
}

void a_push_replaces_and_init_copies() {
    kv::Store store("local");
    Floats value = filled(2);
    store.init(3, of(value));
    value = filled(9);
    CHECK(pulled(store, 3) == 2);
    store.push(3, of(value));
    value = filled(7);
    CHECK(pulled(store, 3) == 9);
}

void values_of_one_key_are_summed() {
    kv::Store store("local");
    const Floats a = filled(1);
    Floats b = filled(2);
    store.init(3, of(a));
    store.push(3, {of(a), of(a), of(a), of(a)});
    CHECK(pulled(store, 3) == 4);
    const std::vector<kv::Tensor> writable(3, of(b));
    store.push(3, writable);
    CHECK(pulled(store, 3) == 6);
    const std::vector<kv::ConstTensor> constant(2, of(a));
    store.push(3, constant);
    CHECK(pulled(store, 3) == 2);
    store.push(3, {of(a)});
    CHECK(pulled(store, 3) == 1);
    store.push({3}, {{of(a), of(b)}});
    CHECK(pulled(store, 3) == 3);
    store.push({3, 3, 3}, {of(a), of(b), of(b)});
    CHECK(pulled(store, 3) == 5);
}

void lists_of_lists_belong_to_lists_of_keys() {
    kv::Store store("local");
    const Floats a = filled(1);
    const Floats b = filled(10);
    store.init({5, 7, 9}, {of(a), of(a), of(a)});
    store.push({5, 7, 9}, {{of(a), of(a)}, {of(b)}, {of(a), of(b), of(b)}});
    CHECK(pulled(store, 5) == 2 && pulled(store, 7) == 10 && pulled(store, 9) == 21);
    const std::vector<kv::ConstTensor> two{of(a), of(b)};
    store.push({5, 7, 9}, {two, two, two});
    CHECK(pulled(store, 5) == 11 && pulled(store, 7) == 11 && pulled(store, 9) == 11);
    store.push({9, 5}, {two, {of(b), of(b)}});
    CHECK(pulled(store, 9) == 11 && pulled(store, 5) == 20);
    const std::vector<std::vector<kv::ConstTensor>> nested{two, {of(a)}, {of(b), of(b)}};
    store.push({5, 7, 9}, nested);
    CHECK(pulled(store, 5) == 11 && pulled(store, 7) == 1 && pulled(store, 9) == 20);
    const std::vector<kv::Key> keys{5, 7};
    store.push(keys, two);
    CHECK(pulled(store, 5) == 1 && pulled(store, 7) == 10);
    store.push({5, 7}, {{}, {of(a)}});  // no value for 5: it stays
    CHECK(pulled(store, 5) == 1 && pulled(store, 7) == 1);
}

void outs_come_in_the_same_forms() {
    kv::Store store("local");
    const Floats a = filled(1);
    const Floats b = filled(2);
    store.init({5, 7}, {of(a), of(b)});
    std::vector<Floats> outs(4, filled(0));
    store.pull(5, {of(outs[0]), of(outs[1]), of(outs[2]), of(outs[3])});
    CHECK(outs == std::vector<Floats>(4, a));
    store.pull({7, 5}, {{of(outs[0]), of(outs[1])}, {of(outs[2])}});
    CHECK(outs[0] == b && outs[1] == b && outs[2] == a);
    std::vector<kv::Tensor> views;
    for (Floats& out : outs) {
        views.push_back(of(out));
    }
    store.pull(7, views);
    CHECK(outs == std::vector<Floats>(4, b));
}

void one_object_serves_several_keys() {
    kv::Store store("local");
    const Floats a = filled(1);
    const Floats b = filled(2);
    const Floats c = filled(3);
    store.init({9, 5, 7}, {of(c), of(a), of(b)});
    Floats out(6);
    const kv::Tensor view = of(out);
    store.pull({9, 7, 5}, {view, view, view});
    CHECK(out == c);  // the last of the ascending keys
    std::vector<Floats> many(4, filled(0));
    const std::vector<kv::Tensor> list{of(many[0]), of(many[1]), of(many[2]), of(many[3])};
    store.push({5, 7, 9}, {list, list, list});
    store.push({5, 7}, {of(a), of(a)});
    store.push({9}, {of(b)});
    store.pull({5, 7, 9}, {list, list, list});
    CHECK(many == std::vector<Floats>(4, b));
}

void pushpull_does_both() {
    kv::Store store("local");
    const Floats a = filled(1);
    const Floats b = filled(2);
    Floats out(6);
    Floats other(6);
    store.init({5, 7}, {of(a), of(b)});
    store.pushpull(5, {of(a), of(b)}, of(out));
    CHECK(out == filled(3));
    store.pushpull(5, of(out), of(out));  // in place
    CHECK(out == filled(3) && pulled(store, 5) == 3);
    store.pushpull({5, 7}, {of(b), of(a)}, {of(out), of(other)});
    CHECK(out == b && other == a);
    store.pushpull(5, {of(a), of(a), of(b)}, {5, 7}, {of(out), of(other)});
    CHECK(out == filled(4) && other == a);
    store.pushpull({5}, {of(a)}, {5, 7}, {of(out), of(other)}, kv::async).wait(patience);
    CHECK(out == a && other == a);
    store.pushpull(7, of(b), {of(out), of(other)}, kv::async(2)).wait(patience);
    CHECK(out == b && other == b);
}

void broadcast_initialises_and_pulls() {
    kv::Store store("local");
    const Floats a = filled(1);
    Floats out(6);
    Floats other(6);
    store.broadcast("w", of(a), of(out));
    CHECK(out == a);
    store.broadcast({1, 2}, {of(a), of(filled(4))}, {"w", 2}, {of(out), of(other)});
    CHECK(out == a && other == filled(4));
    store.broadcast({3}, {of(a)}, {{of(out), of(other)}}, kv::async).wait(patience);
    CHECK(other == a);
    store.broadcast(4, of(filled(5)), {4, 3}, {of(out), of(other)}, kv::async(1)).wait(patience);
    CHECK(out == filled(5) && other == a && store.keys().size() == 5);
    CHECK_THROWS(store.broadcast(4, of(a), of(out)), KV_ERR_KEY_EXISTS, "key 4");
}

void inputs_are_never_written() {
    kv::Store store("local");
    const Floats a = filled(1);
    Floats pushed = filled(3);
    store.init(0, of(a));
    store.push(0, of(pushed));
    store.push(0, of(a));
    CHECK(pushed == filled(3) && a == filled(1));
    store.set_updater([](kv::Key, const kv::ConstTensor&, kv::Tensor& stored) {
        std::fill_n(stored.data<float>(), stored.size(), 8.0F);
    });
    store.push(0, of(pushed));
    CHECK(pushed == filled(3) && pulled(store, 0) == 8);
}

void refused_calls_change_nothing() {
    kv::Store store("local");
    const Floats a = filled(1);
    const Floats b = filled(2);
    Floats wide(8);
    std::vector<std::int32_t> integers(6);
    store.init({1, 2}, {of(a), of(a)});
    CHECK_THROWS(store.init({3, 1}, {of(b), of(b)}), KV_ERR_KEY_EXISTS, "key 1");
    CHECK(store.keys().size() == 2);
    CHECK_THROWS(store.push({1, 2}, {of(b), kv::view(wide, {2, 4})}), KV_ERR_SHAPE_MISMATCH,
                 "float32[2,4]");
    CHECK_THROWS(store.push({1, 2}, {of(b), kv::view(integers, {2, 3})}), KV_ERR_DTYPE_MISMATCH,
                 "int32");
    CHECK_THROWS(store.push({1, 4}, {of(b), of(b)}), KV_ERR_KEY_NOT_FOUND, "key 4");
    CHECK_THROWS(store.push({"one", "two"}, {of(b), of(b)}), KV_ERR_KEY_NOT_FOUND, "one");
    CHECK_THROWS(store.push(1, of(b).on({KV_CUDA_MANAGED, 0})), KV_ERR_UNSUPPORTED, "CUDA");
    CHECK(pulled(store, 1) == 1 && pulled(store, 2) == 1);
    Floats out = filled(9);
    CHECK_THROWS(store.pull({1, 4}, {of(out), of(out)}), KV_ERR_KEY_NOT_FOUND, "key 4");
    CHECK_THROWS(store.pull(1, kv::view(out.data(), {3, 2})), KV_ERR_SHAPE_MISMATCH,
                 "float32[3,2]");
    CHECK_THROWS(store.pull({1, 2}, {kv::view(wide.data(), {2, 3}), kv::view(&wide[2], {2, 3})}),
                 KV_ERR_OVERLAP, "");
    CHECK(out == filled(9) && wide == Floats(8));
    store.push(1, of(b));
    CHECK(pulled(store, 1) == 2);
}

void lists_of_other_lengths_are_refused() {
    kv::Store store("local");
    const Floats a = filled(1);
    store.init({1, 2}, {of(a), of(a)});
    const auto refused = KV_ERR_INVALID_ARGUMENT;
    CHECK_THROWS(store.push({1, 2}, of(a)), refused, "2 keys, but tensors for 1");
    CHECK_THROWS(store.push({1, 2}, {of(a), of(a), of(a)}), refused, "2 keys, but tensors for 3");
    CHECK_THROWS(store.push({1}, {of(a), of(a)}), refused, "1 keys, but tensors for 2");
    CHECK_THROWS(store.push(std::vector<int>{}, of(a)), refused, "0 keys, but tensors for 1");
    Floats out(6);
    CHECK_THROWS(store.pushpull(1, of(a), {1, 2}, {of(out)}), refused, "2 keys");
    CHECK(pulled(store, 1) == 1);
}

void misaligned_data_is_refused() {
    kv::Store store("local");
    alignas(8) char bytes[32] = {};
    const kv::Tensor view = kv::view(reinterpret_cast<float*>(bytes), {6});
    kv_tensor raw = view.raw();
    raw.byte_offset = 1;
    CHECK_THROWS(store.init(0, kv::ConstTensor(raw)), KV_ERR_INVALID_ARGUMENT, "align");
    raw.byte_offset = 4;
    store.init(0, kv::ConstTensor(raw));
    CHECK(store.keys().size() == 1);
}

void device_numbers_have_no_effect() {
    kv::Store store("device");
    const Floats a = filled(1);
    store.init(0, of(a).on(kv::cpu(3)));
    store.push(0, {of(a).on(kv::cpu(0)), of(a).on(kv::cpu(1)), of(a).on({KV_CUDA_HOST, 0})});
    CHECK(pulled(store, 0) == 3);
}

}  // namespace

int main() {
    return run("data", [] {
        a_push_replaces_and_init_copies();
        values_of_one_key_are_summed();
        lists_of_lists_belong_to_lists_of_keys();
        outs_come_in_the_same_forms();
        one_object_serves_several_keys();
        pushpull_does_both();
        broadcast_initialises_and_pulls();
        inputs_are_never_written();
        refused_calls_change_nothing();
        lists_of_other_lengths_are_refused();
        misaligned_data_is_refused();
        device_numbers_have_no_effect();
    });
}
