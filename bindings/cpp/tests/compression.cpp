// Compression: the forms that options may take, what arrives of pushes, and what is refused.
#include "check.hpp"

#include <cmath>
#include <map>
#include <string>

namespace {

using Floats = std::vector<float>;

// The arithmetic of 2bit, as docs/use/compression.md has it.
float two_bit(float value, float threshold, float& residual) {
    residual += value;
    const float sent =
        residual >= threshold ? threshold : residual <= -threshold ? -threshold : 0.0F;
    residual -= sent;
    return sent;
}

Floats numbers(std::size_t count, int round) {
    Floats all(count);
    for (std::size_t i = 0; i < count; i++) {
        all[i] = static_cast<float>((static_cast<int>(i) * 37 + round * 53) % 101) / 25 - 2;
    }
    return all;
}

// A store with one key of zeros.
kv::Store opened(std::size_t count) {
    const Floats zeros(count);
    kv::Store store("local");
    store.init("w", kv::view(zeros));
    return store;
}

Floats pulled(kv::Store& store, std::size_t count) {
    Floats out(count, 9.0F);
    store.pull("w", kv::view(out));
    return out;
}

void each_value_is_sent_with_its_residual() {
    constexpr std::size_t count = 50;
    kv::Store store = opened(count);
    Floats first(count), second(count);
    store.set_compression("2Bit", "threshold=0.75");
    for (int round = 0; round < 10; round++) {
        const Floats a = numbers(count, round), b = numbers(count, round + 100);
        if (round % 2 == 0) {
            store.push("w", {kv::view(a), kv::view(b)});
        } else {
            store.push("w", {kv::view(a), kv::view(b)}, kv::async).wait(patience);
        }
        const Floats out = pulled(store, count);
        for (std::size_t i = 0; i < count; i++) {
            const float sent = two_bit(a[i], 0.75F, first[i]);
            CHECK(out[i] == sent + two_bit(b[i], 0.75F, second[i]));
        }
    }
}

void every_codec_is_known_and_none_ends_it() {
    for (const char* name : {"1bit", "2bit", "fp16", "bf16", "int8", "topk", "randomk"}) {
        kv::Store store = opened(300);
        const Floats value = numbers(300, 1);
        store.set_compression(name);
        store.push("w", kv::view(value));
        CHECK(pulled(store, 300) != value);
        store.set_compression("none");
        store.push("w", kv::view(value));
        CHECK(pulled(store, 300) == value);
    }
}

void every_form_of_the_options_means_the_same() {
    const Floats value = numbers(300, 1);
    const auto arrives = [&](auto set) {
        kv::Store store = opened(300);
        set(store);
        store.push("w", kv::view(value));
        return pulled(store, 300);
    };
    const Floats expected =
        arrives([](kv::Store& store) { store.set_compression("topk", "ratio=0.3"); });
    CHECK(expected != value);
    const std::string name = "topk";
    const std::map<std::string, double> mapped{{"ratio", 0.3}};
    CHECK(expected == arrives([&](kv::Store& store) { store.set_compression(name, mapped); }));
    CHECK(expected == arrives([&](kv::Store& store) {
              store.set_compression(name, {{"ratio", 0.3}, {"feedback", 1}});
          }));
}

void what_is_wrong_is_refused_and_changes_nothing() {
    kv::Store store = opened(1);
    store.set_compression("2bit", {{"threshold", 2}});
    CHECK_THROWS(store.set_compression("2bits"), KV_ERR_OPTION, "did you mean");
    CHECK_THROWS(store.set_compression("2bit", "treshold=1"), KV_ERR_OPTION, "threshold");
    CHECK_THROWS(store.set_compression("2bit", {{"threshold", 0}}), KV_ERR_OPTION, "above 0");
    const Floats value{3.0F};
    store.push("w", kv::view(value));
    CHECK(pulled(store, 1) == Floats{2.0F});
    const std::vector<double> wide(1);
    CHECK_THROWS(store.init(1, kv::view(wide)), KV_ERR_DTYPE_MISMATCH, "key 1 is float64[1]");
    store.set_compression("none");
    store.init(1, kv::view(wide));
    CHECK_THROWS(store.set_compression("1bit"), KV_ERR_DTYPE_MISMATCH, "key 1 is float64[1]");
    store.close(patience);
    CHECK_THROWS(store.set_compression("none"), KV_ERR_CLOSED, "");
}

}  // namespace

int main() {
    return run("compression", [] {
        each_value_is_sent_with_its_residual();
        every_codec_is_known_and_none_ends_it();
        every_form_of_the_options_means_the_same();
        what_is_wrong_is_refused_and_changes_nothing();
    });
}
