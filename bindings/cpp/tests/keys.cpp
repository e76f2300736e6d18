// Keys: integers, names, lists of both, and what the store says about them.
#include "check.hpp"

#include <cstdint>
#include <limits>

namespace {

std::vector<float> ones(6, 1.0F);

kv::Tensor one() { return kv::view(ones, {2, 3}); }

void a_literal_zero_is_a_key() {
    kv::Store store("local");
    std::vector<float> out(6);
    store.init(0, one());
    store.push(0, one());
    store.pull(0, kv::view(out, {2, 3}));
    store.pushpull(0, one(), kv::view(out, {2, 3}));
    store.pushpull(0, one(), 0, kv::view(out, {2, 3}));
    store.push(0, one(), kv::async).wait(patience);
    store.pull(0, kv::view(out, {2, 3}), kv::async(1)).wait(patience);
    CHECK(store.key_info(0).shape.size() == 2);
    store.remove(0);
    store.broadcast(0, one(), kv::view(out, {2, 3}));
    store.remove({0});
    store.broadcast({0}, {one()}, {0}, {kv::view(out, {2, 3})});
    CHECK(out == ones && store.keys() == std::vector<kv::Key>{0});
}

void digests_are_those_of_the_bytes() {
    kv::Store store("local");
    store.init("weight", one());
    store.init(2, one());
    store.push(2, one());
    std::uint64_t sum = ~std::uint64_t{0};
    const auto* bytes = reinterpret_cast<const unsigned char*>(ones.data());
    for (std::size_t i = 0; i < ones.size() * sizeof(float); i++) {
        sum ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            sum = (sum >> 1) ^ ((sum & 1) != 0 ? 0x9a6c9329ac4bc9b5 : 0);
        }
    }
    const auto digests = store.digest({2, "weight"});
    CHECK(digests.size() == 2 && digests[0].round == 1 && digests[1].round == 0);
    CHECK(digests[0].value == ~sum && digests[1].value == ~sum && digests[0].state == 0);
    CHECK(store.digest("weight").front().value == ~sum);
    CHECK(store.digest(std::vector<int>{}).empty());
    CHECK_THROWS(store.digest(9), KV_ERR_KEY_NOT_FOUND, "key 9");
    CHECK_THROWS((void)store.last_round(9), KV_ERR_KEY_NOT_FOUND, "key 9");
}

template <class Integer>
void integers_of_this_type_are_keys(kv::Store& store) {
    const Integer highest = std::numeric_limits<Integer>::max();
    if constexpr (std::is_signed_v<Integer>) {
        const auto refused = KV_ERR_INVALID_ARGUMENT;
        const Integer lowest = std::numeric_limits<Integer>::min();
        CHECK_THROWS(store.init(Integer{-1}, one()), refused, "key -1 is negative");
        CHECK_THROWS(store.push(lowest, one()), refused, "is negative");
        CHECK_THROWS(store.pull({Integer{0}, Integer{-7}}, {one(), one()}), refused, "key -7");
        CHECK_THROWS(store.remove(std::vector<Integer>{-1}), refused, "key -1");
        CHECK_THROWS(store.key_info(Integer{-1}), refused, "key -1");
        CHECK(store.keys().empty());
    }
    if constexpr (sizeof(Integer) < 8 || std::is_signed_v<Integer>) {
        store.init(highest, one());
        CHECK(store.keys() == std::vector<kv::Key>{static_cast<kv::Key>(highest)});
        store.remove(highest);
    } else {
        CHECK_THROWS(store.init(highest, one()), KV_ERR_KEY_NOT_FOUND, "");  // no such name
    }
}

void integers_of_every_type_are_keys() {
    kv::Store store("local");
    integers_of_this_type_are_keys<signed char>(store);
    integers_of_this_type_are_keys<unsigned char>(store);
    integers_of_this_type_are_keys<short>(store);
    integers_of_this_type_are_keys<unsigned short>(store);
    integers_of_this_type_are_keys<int>(store);
    integers_of_this_type_are_keys<unsigned>(store);
    integers_of_this_type_are_keys<long>(store);
    integers_of_this_type_are_keys<unsigned long>(store);
    integers_of_this_type_are_keys<long long>(store);
    integers_of_this_type_are_keys<unsigned long long>(store);
}

void names_of_every_type_are_keys() {
    kv::Store store("local");
    const std::string text = "text";
    const std::string_view part = std::string_view("viewed").substr(0, 4);
    const char* pointer = "pointer";
    store.init("literal", one());
    store.init(text, one());
    store.init(part, one());
    store.init(pointer, one());
    store.init(std::string("temporary"), one());
    store.init("", one());
    const std::vector<kv::Key> keys = store.keys();
    const std::vector<std::string> names{"literal", "text", "view", "pointer", "temporary", ""};
    CHECK(keys.size() == names.size());
    for (std::size_t i = 0; i < keys.size(); i++) {
        CHECK(keys[i] >> 63 == 1 && store.name(keys[i]) == names[i]);
        CHECK(store.intern(names[i]) == keys[i]);
    }
    const char* none = nullptr;
    const std::string cut("fc1\0weight", 10);
    CHECK_THROWS(store.push(none, one()), KV_ERR_INVALID_ARGUMENT, "null");
    CHECK_THROWS(store.push(cut, one()), KV_ERR_INVALID_ARGUMENT, "NUL");
    CHECK_THROWS(store.intern(cut), KV_ERR_INVALID_ARGUMENT, "NUL");
    CHECK_THROWS(store.intern("\xff"), KV_ERR_INVALID_ARGUMENT, "UTF-8");
    CHECK_THROWS(store.name(7), KV_ERR_KEY_NOT_FOUND, "7");
}

// Two names with the same 63-bit hash.
void colliding_names_are_refused() {
    kv::Store store("local");
    store.init("zydjx7v77kn7f", one());
    CHECK_THROWS(store.intern("57er3422k45qg"), KV_ERR_NAME_COLLISION, "zydjx7v77kn7f");
    CHECK_THROWS(store.init("57er3422k45qg", one()), KV_ERR_NAME_COLLISION, "57er3422k45qg");
    CHECK(store.keys().size() == 1);
}

void names_and_integers_live_together() {
    kv::Store store("local");
    std::vector<float> twos(6, 2.0F);
    std::vector<float> out(6);
    const kv::Key seven = store.intern("7");
    CHECK(seven != 7);
    store.init({7, seven}, {one(), kv::view(twos, {2, 3})});
    store.pull(7, kv::view(out, {2, 3}));
    CHECK(out == ones);
    store.pull("7", kv::view(out, {2, 3}));
    CHECK(out == twos);
    kv::Store other("device");
    CHECK(other.intern("7") == seven);
}

void keys_are_listed_in_order() {
    kv::Store store("local");
    CHECK(store.keys().empty());
    store.init({"zeta", "alpha"}, {one(), one()});
    store.init({9, 2, 5}, {one(), one(), one()});
    const kv::Key zeta = store.intern("zeta");
    const kv::Key alpha = store.intern("alpha");
    CHECK((store.keys() == std::vector<kv::Key>{2, 5, 9, zeta, alpha}));
    std::vector<int> more;  // more than one try has room for
    for (int key = 100; key < 200; key++) {
        more.push_back(key);
    }
    store.init(more, std::vector<kv::Tensor>(more.size(), one()));
    const std::vector<kv::Key> all = store.keys();
    CHECK(all.size() == 105 && all[3] == 100 && all[104] == alpha);
    store.remove(more);
    CHECK(store.keys().size() == 5);
}

void lists_of_keys_come_in_every_form() {
    kv::Store store("local");
    const std::vector<kv::Key> numbers{1, 2};
    const std::vector<int> integers{3, 4};
    const std::vector<std::string> names{"a", "b"};
    const std::vector<const char*> literals{"c", "d"};
    const std::vector<kv::Tensor> two{one(), one()};
    store.init(numbers, two);
    store.init(integers, two);
    store.init(names, two);
    store.init(literals, two);
    store.init({"e", std::string("f")}, two);
    store.init({store.intern("g"), kv::Key{5}}, two);
    CHECK(store.keys().size() == 12);
    store.push({1, "a", store.intern("b")}, {one(), one(), one()});
    store.push(std::vector<kv::Key>{}, std::vector<kv::Tensor>{});
    store.remove(names);
    CHECK(store.keys().size() == 10);
}

void a_key_says_what_it_holds() {
    kv::Store store("local");
    store.init("fc1.weight", one());
    const kv::KeyInfo info = store.key_info("fc1.weight");
    CHECK(info.dtype == KV_F32);
    CHECK(info.shape.size() == 2 && info.shape[0] == 2 && info.shape[1] == 3);
    CHECK(store.key_info(store.intern("fc1.weight")).dtype == KV_F32);
    CHECK_THROWS(store.key_info(1), KV_ERR_KEY_NOT_FOUND, "1");
    CHECK_THROWS(store.key_info("fc9"), KV_ERR_KEY_NOT_FOUND, "fc9");
}

void removed_keys_are_free() {
    kv::Store store("local");
    std::vector<double> numbers(4, 3.0);
    store.init({1, 2}, {one(), one()});
    CHECK_THROWS(store.remove({1, 1}), KV_ERR_KEY_NOT_FOUND, "1");
    CHECK_THROWS(store.remove({1, 3}), KV_ERR_KEY_NOT_FOUND, "3");
    CHECK(store.keys().size() == 2);
    store.remove({1, 2});
    CHECK_THROWS(store.push(1, one()), KV_ERR_KEY_NOT_FOUND, "1");
    store.init(1, kv::view(numbers));
    CHECK(store.key_info(1).dtype == KV_F64);
}

}  // namespace

int main() {
    return run("keys", [] {
        a_literal_zero_is_a_key();
    digests_are_those_of_the_bytes();
        integers_of_every_type_are_keys();
        names_of_every_type_are_keys();
        colliding_names_are_refused();
        names_and_integers_live_together();
        keys_are_listed_in_order();
        lists_of_keys_come_in_every_form();
        a_key_says_what_it_holds();
        removed_keys_are_free();
    });
}
