// Optimizers: the forms that options may take, single keys, and what is refused.
#include "check.hpp"

#include <cmath>
#include <locale>
#include <map>
#include <memory>
#include <unordered_map>

namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

double pulled(kv::Store& store, const kv::Keys& key) {
    Doubles out(3);
    store.pull(key, kv::view(out));
    CHECK(out[0] == out[1] && out[1] == out[2]);
    return out[0];
}

// A store with one f64 key, which is 1.
kv::Store opened(const kv::AnyKey& key) {
    const Doubles ones(3, 1.0);
    kv::Store store("local");
    store.init(key, kv::view(ones));
    return store;
}

void a_sum_goes_through_the_rule() {
    kv::Store store = opened("w");
    const Doubles gradient(3, 0.5);
    store.set_optimizer("SGD", "learning_rate=0.25");
    store.push("w", {kv::view(gradient), kv::view(gradient)});
    CHECK(pulled(store, "w") == 0.75);
    store.push("w", kv::view(gradient), kv::async).wait(patience);
    CHECK(pulled(store, "w") == 0.625);
    store.set_updater(nullptr);  // assign again
    store.push("w", kv::view(gradient));
    CHECK(pulled(store, "w") == 0.5);
}

void single_keys_have_rules_of_their_own() {
    kv::Store store = opened("w");
    const Doubles ones(3, 1.0);
    const Doubles gradient(3, 0.5);
    store.init(7, kv::view(ones));
    store.set_optimizer("sgd", "learning_rate=0.25");
    store.set_optimizer_for({7, "unknown"}, "none");
    store.push("w", kv::view(gradient));
    store.push(7, kv::view(gradient));
    CHECK(pulled(store, "w") == 0.875);
    CHECK(pulled(store, 7) == 0.5);
    store.set_optimizer_for(7, "sgd", {{"learning_rate", 0.5}});
    store.set_key_hyperparameter(7, "learning_rate", 1);
    store.push(7, kv::view(gradient));
    CHECK(pulled(store, 7) == 0);
}

// f32 keys calculate in float, and this file is not built for instructions that fuse operations.
void momentum_is_kept_from_push_to_push() {
    const Floats start{1.0F, -2.0F, 0.1F};
    const Floats gradient{0.3F, 0.7F, -0.2F};
    Floats out(3);
    Floats weight = start;
    Floats speed(3);
    kv::Store store("local");
    store.init(0, kv::view(start));
    store.set_optimizer("momentum", {{"learning_rate", 0.1}, {"momentum", 0.9}, {"wd", 0.01}});
    for (int step = 0; step < 10; step++) {
        store.pushpull(0, kv::view(gradient), kv::view(out));
        for (std::size_t i = 0; i < out.size(); i++) {
            speed[i] = 0.9F * speed[i] - 0.1F * (gradient[i] + 0.01F * weight[i]);
            weight[i] += speed[i];
            CHECK(std::fabs(out[i] - weight[i]) <= 1e-6F);
        }
    }
}

void every_form_of_the_options_means_the_same() {
    const Doubles gradient(3, 1.0);
    const auto after_two = [&](auto set) {
        kv::Store store = opened(0);
        set(store);
        store.push(0, kv::view(gradient));
        store.push(0, kv::view(gradient));
        return pulled(store, 0);
    };
    const double expected = after_two(
        [](kv::Store& store) { store.set_optimizer("sgd", "learning_rate=0.1,momentum=0.7"); });
    CHECK(std::fabs(expected - (1 - 0.1 - 0.1 * 1.7)) < 1e-15);
    const std::string name = "sgd";
    const std::map<std::string, double> sorted{{"momentum", 0.7}, {"learning_rate", 0.1}};
    const std::unordered_map<std::string_view, long double> hashed(sorted.begin(), sorted.end());
    CHECK(expected == after_two([&](kv::Store& store) { store.set_optimizer(name, sorted); }));
    CHECK(expected == after_two([&](kv::Store& store) { store.set_optimizer(name, hashed); }));
    CHECK(expected == after_two([&](kv::Store& store) {
              store.set_optimizer(name, std::string(" momentum = 0.7, learning_rate=0.1"));
          }));
    CHECK(expected == after_two([](kv::Store& store) {
              store.set_optimizer("sgd", {{"learning_rate", 0.1}, {"momentum", 0.7}});
          }));
    CHECK(expected == after_two([](kv::Store& store) {
              store.set_optimizer("sgd", {{"learning_rate", 1}, {"multi_precision", true}});
              store.set_hyperparameter("learning_rate", 0.1);
              store.set_hyperparameter("momentum", 0.7);
          }));
    CHECK(after_two([](kv::Store& store) { store.set_optimizer("sgd"); }) ==
          after_two([](kv::Store& store) { store.set_optimizer("sgd", {}); }));
}

struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
};

void numbers_arrive_unchanged_in_any_locale() {
    const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Comma));
    const Doubles gradient(3, 1.0);
    for (const double rate : {0.1, 1.0 / 3, 1e-300, 5e-324, 123456.75, 1e22 / 7}) {
        kv::Store store = opened(0);
        store.set_optimizer("sgd", {{"learning_rate", rate}});
        store.push(0, kv::view(gradient));
        CHECK(pulled(store, 0) == 1 - rate);
        const Doubles zeros(3);
        store.init(1, kv::view(zeros));
        store.push(1, kv::view(gradient));
        CHECK(pulled(store, 1) == -rate);
    }
    kv::Store store = opened(0);
    store.set_optimizer("sgd", {{"clip_gradient", std::numeric_limits<double>::infinity()}});
    std::locale::global(before);
}

void single_keys_have_factors() {
    const Doubles ones(3, 1.0);
    kv::Store store = opened(0);
    store.set_optimizer("sgd", {{"learning_rate", 0.5}, {"wd", 0.5}});
    store.set_key_hyperparameter("bias", "wd_mult", 0);
    store.set_key_hyperparameter(7, "lr_mult", 2);
    store.init({"bias", "late"}, {kv::view(ones), kv::view(ones)});
    store.init(7, kv::view(ones));
    store.push({0, 7}, {kv::view(ones), kv::view(ones)});
    store.push({"bias", "late"}, {kv::view(ones), kv::view(ones)});
    CHECK(pulled(store, 0) == 0.25 && pulled(store, "late") == 0.25);
    CHECK(pulled(store, 7) == -0.5 && pulled(store, "bias") == 0.5);
    store.set_hyperparameter("learning_rate", 0);
    store.push({0, 7}, {kv::view(ones), kv::view(ones)});
    CHECK(pulled(store, 0) == 0.25 && pulled(store, 7) == -0.5);
    CHECK_THROWS(store.set_key_hyperparameter(-1, "lr_mult", 1), KV_ERR_INVALID_ARGUMENT, "-1");
}

void what_is_wrong_is_refused_and_changes_nothing() {
    const Doubles ones(3, 1.0);
    kv::Store store = opened(0);
    const kv_status option = KV_ERR_OPTION;
    const kv_status argument = KV_ERR_INVALID_ARGUMENT;
    CHECK_THROWS(store.set_hyperparameter("learning_rate", 1), argument, "no optimizer");
    CHECK_THROWS(store.set_key_hyperparameter(0, "lr_mult", 1), argument, "no optimizer");
    store.set_optimizer("sgd", "learning_rate=0.5");
    CHECK_THROWS(store.set_optimizer("sdg"), option, "sgd");
    CHECK_THROWS(store.set_optimizer("adam", "learning=1"), option, "learning_rate");
    CHECK_THROWS(store.set_optimizer("adam", {{"beta1", 1}}), option, "beta1");
    CHECK_THROWS(store.set_optimizer("adam", {{"wd", 1}, {"wd", 1}}), option, "twice");
    CHECK_THROWS(store.set_hyperparameter("momentun", 0.1), option, "momentum");
    CHECK_THROWS(store.set_hyperparameter("learning_rate", std::nan("")), option, "NaN");
    CHECK_THROWS(store.set_key_hyperparameter(0, "lr", 1), option, "lr_mult");
    const std::string_view cut("sgd\0adam", 8);
    CHECK_THROWS(store.set_optimizer(cut), argument, "NUL");
    CHECK_THROWS(store.set_optimizer("sgd", cut), argument, "NUL");
    CHECK_THROWS(store.set_optimizer("sgd", {{cut, 1}}), argument, "NUL");
    CHECK_THROWS(store.set_hyperparameter(cut, 1), argument, "NUL");
    CHECK_THROWS(store.set_key_hyperparameter(0, cut, 1), argument, "NUL");
    store.push(0, kv::view(ones));
    CHECK(pulled(store, 0) == 0.5);
    store.close(patience);
    CHECK_THROWS(store.set_optimizer("sgd"), KV_ERR_CLOSED, "");
    CHECK_THROWS(store.set_hyperparameter("wd", 1), KV_ERR_CLOSED, "");
}

void gradients_are_clipped_by_the_norm_of_all_keys() {
    const Doubles three(3, 3.0), four(3, 4.0), bad(3, std::nan(""));
    kv::Store store("local");
    store.init({0, 1}, {kv::view(three), kv::view(four)});
    store.set_optimizer("test");
    CHECK(std::isnan(store.last_norm().norm) && store.last_norm().skips == 0);
    store.set_clipping(2.5);
    store.push({0, 1}, {kv::view(three), kv::view(four)});
    const double factor = 2.5 / (std::sqrt(75.0) + 1e-6);
    CHECK(pulled(store, 0) == 3 + factor * 3 && pulled(store, 1) == 4 + factor * 4);
    CHECK(store.last_norm().norm == std::sqrt(75.0));
    store.push({0, 1}, {kv::view(three), kv::view(bad)});
    CHECK(store.last_norm().skips == 1 && pulled(store, 0) == 3 + factor * 3);
    store.set_clipping(2.5, KV_CLIP_FAIL);
    CHECK_THROWS(store.push({0, 1}, {kv::view(three), kv::view(bad)}), KV_ERR_INVALID_ARGUMENT, "key 1");
    CHECK_THROWS(store.set_clipping(-1), KV_ERR_INVALID_ARGUMENT, "max_norm");
}

void pushes_are_taken_back() {
    const Doubles three(3, 3.0), four(3, 4.0), bad(3, std::nan(""));
    kv::Store store("local");
    store.init({0, 1}, {kv::view(three), kv::view(four)});
    store.set_optimizer("test");
    CHECK_THROWS(store.rollback(), KV_ERR_INVALID_ARGUMENT, "no transaction has begun");
    store.begin();
    CHECK_THROWS(store.begin(), KV_ERR_INVALID_ARGUMENT, "a transaction has begun");
    store.push(0, kv::view(four));
    CHECK(pulled(store, 0) == 7);
    store.rollback();
    CHECK(pulled(store, 0) == 3);
    store.set_clipping(8);
    for (const auto& [gradient, outcome] : {std::pair{&three, kv::Commit::kept},
                                            std::pair{&four, kv::Commit::exceeded},
                                            std::pair{&bad, kv::Commit::skipped}}) {
        store.begin();
        store.push(1, kv::view(three));
        store.push(0, kv::view(*gradient));
        CHECK(store.commit() == outcome);
        CHECK(pulled(store, 0) == 6 && pulled(store, 1) == 7);
    }
}

void integers_are_refused() {
    const std::vector<std::int32_t> integers(3, 1);
    kv::Store store("local");
    store.init(0, kv::view(integers));
    CHECK_THROWS(store.set_optimizer("sgd"), KV_ERR_DTYPE_MISMATCH, "key 0");
    store.remove(0);
    store.set_optimizer("sgd");
    CHECK_THROWS(store.init(0, kv::view(integers)), KV_ERR_DTYPE_MISMATCH, "sgd");
    store.set_updater(nullptr);
    store.init(0, kv::view(integers));
}

void an_optimizer_takes_the_place_of_an_updater() {
    const Doubles ones(3, 1.0);
    const auto state = std::make_shared<int>(0);
    kv::Store store = opened(0);
    store.set_updater([state](kv::Key, const kv::ConstTensor&, kv::Tensor&) { ++*state; });
    CHECK_THROWS(store.set_optimizer("none"), KV_ERR_OPTION, "");
    CHECK(state.use_count() == 2);
    store.set_optimizer("adam", {{"learning_rate", 0.5}, {"epsilon", 0}});
    CHECK(state.use_count() == 1);
    store.push(0, kv::view(ones));
    CHECK(*state == 0 && std::fabs(pulled(store, 0) - 0.5) < 1e-15);
}

}  // namespace

int main() {
    return run("optimizers", [] {
        a_sum_goes_through_the_rule();
    single_keys_have_rules_of_their_own();
        momentum_is_kept_from_push_to_push();
        every_form_of_the_options_means_the_same();
        numbers_arrive_unchanged_in_any_locale();
        single_keys_have_factors();
        what_is_wrong_is_refused_and_changes_nothing();
        gradients_are_clipped_by_the_norm_of_all_keys();
        pushes_are_taken_back();
        integers_are_refused();
        an_optimizer_takes_the_place_of_an_updater();
    });
}
