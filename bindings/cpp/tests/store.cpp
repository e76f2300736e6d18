// The life of a store: opening, options, questions, closing; the logger; versions.
#include "check.hpp"

#include <cstdlib>
#include <stdexcept>

namespace {

using namespace std::chrono_literals;
using Floats = std::vector<float>;

static_assert(!std::is_copy_constructible_v<kv::Store>);
static_assert(!std::is_copy_constructible_v<kv::Config>);
static_assert(std::is_nothrow_move_constructible_v<kv::Store>);
static_assert(std::is_nothrow_move_assignable_v<kv::Store>);
static_assert(std::is_nothrow_move_constructible_v<kv::Config>);
static_assert(!std::is_convertible_v<const char*, kv::Store>);
static_assert(std::is_nothrow_copy_constructible_v<kv::Error>);

void stores_open_by_type() {
    CHECK(kv::Store("local").type() == "local");
    CHECK(kv::Store("LOCAL_update_CPU").type() == "local");
    CHECK(kv::Store(std::string("local_allreduce_device")).type() == "device");
    CHECK(kv::Store(std::string_view("device+").substr(0, 6)).type() == "device");
    CHECK_THROWS(kv::Store("locale"), KV_ERR_INVALID_ARGUMENT, "local");
    CHECK_THROWS(kv::Store(""), KV_ERR_INVALID_ARGUMENT, "device");
    CHECK_THROWS(kv::Store(std::string_view("local\0", 6)), KV_ERR_INVALID_ARGUMENT, "NUL");
}

void options_are_checked() {
    CHECK(kv::Store("local", {}).type() == "local");
    CHECK(kv::Store("local", {{"threads", std::to_string(2)}}).type() == "local");
    kv::Store store("local", {{"threads", "3"}, {"updater_undo", "yes"}, {"isa", "scalar"}});
    CHECK(store.stats().find("\"threads\":3") != std::string::npos);
    CHECK_THROWS(kv::Config({{"thread", "1"}}), KV_ERR_OPTION, "threads");
    CHECK_THROWS(kv::Store("local", {{"threads", "0"}}), KV_ERR_OPTION, "threads");
    const std::string_view name("isa\0", 4);
    const std::string_view value("auto\0", 5);
    CHECK_THROWS(kv::Config({{name, "auto"}}), KV_ERR_INVALID_ARGUMENT, "NUL");
    CHECK_THROWS(kv::Config({{"isa", value}}), KV_ERR_INVALID_ARGUMENT, "NUL");

    kv::Config config;
    config.set("threads", "1");
    config.set("threads", "5");
    kv::Config moved = std::move(config);
    CHECK(config.raw() == nullptr && moved.raw() != nullptr);
    CHECK_THROWS(config.set("threads", "1"), KV_ERR_INVALID_ARGUMENT, "");
    CHECK(kv::Store("local", moved).stats().find("\"threads\":5") != std::string::npos);
    CHECK(kv::Store("device", moved).type() == "device");
}

void a_group_is_a_store_of_its_own() {
    kv::Store store("local");
    CHECK_THROWS((void)store.group("", {0}), KV_ERR_INVALID_ARGUMENT, "empty");
    CHECK_THROWS((void)store.group("g", {}), KV_ERR_INVALID_ARGUMENT, "worker 0 alone");
    CHECK_THROWS((void)store.group("g", {-1}), KV_ERR_INVALID_ARGUMENT, "ranks begin at 0");
    CHECK_THROWS((void)store.group(std::string_view("g\0", 2), {0}), KV_ERR_INVALID_ARGUMENT, "NUL");
    kv::Store group = store.group("alone", {0});
    CHECK(group.rank() == 0 && group.num_workers() == 1 && group.type() == "local");
    const Floats ours{1, 2, 3};
    const Floats theirs{4, 5, 6};
    Floats out(3);
    store.init(1, kv::view(ours));
    group.init(1, kv::view(theirs));
    group.pull(1, kv::view(out));
    CHECK(out == theirs);
    store.pull(1, kv::view(out));
    CHECK(out == ours);
    group.close(0s);
    CHECK_THROWS(group.pull(1, kv::view(out)), KV_ERR_CLOSED, "closed");
}

void a_local_store_is_a_cluster_of_one() {
    kv::Store store("local");
    CHECK(store.role() == KV_ROLE_WORKER && store.rank() == 0 && store.num_workers() == 1);
    CHECK(store.num_lost() == 0);
    store.barrier();
    store.barrier(0s);
    store.done();
    CHECK_THROWS(store.serve(), KV_ERR_ROLE, "worker");
    Floats value(3);
    store.init(0, kv::view(value));
    store.pull(0, kv::view(value));
}

long number_in(const std::string& stats, const std::string& name) {
    const std::size_t place = stats.find("\"" + name + "\":");
    CHECK(place != std::string::npos);
    return std::strtol(&stats[place + name.size() + 3], nullptr, 10);
}

void statistics_count() {
    kv::Store store("local");
    Floats value(6);
    store.init({1, 2}, {kv::view(value), kv::view(value)});
    store.push({1, 2}, {kv::view(value), kv::view(value)});
    store.pull(1, kv::view(value));
    const std::string stats = store.stats();
    CHECK(stats.front() == '{' && stats.back() == '}');
    CHECK(stats.find("\"type\":\"local\"") != std::string::npos);
    CHECK(number_in(stats, "keys") == 2 && number_in(stats, "bytes") == 48);
    CHECK(number_in(stats, "pushes") == 2 && number_in(stats, "pulls") == 1);
    CHECK(number_in(stats, "pending") == 0 && number_in(stats, "failed") == 0);
}

void stores_move() {
    Floats value{1, 2, 3};
    kv::Store first("local");
    first.init(0, kv::view(value));
    kv_store* const handle = first.raw();
    kv::Store second = std::move(first);
    CHECK(first.raw() == nullptr && second.raw() == handle);
    CHECK_THROWS(first.push(0, kv::view(value)), KV_ERR_INVALID_ARGUMENT, "store");
    CHECK_THROWS(first.type(), KV_ERR_INVALID_ARGUMENT, "store");
    CHECK_THROWS(first.serve(), KV_ERR_INVALID_ARGUMENT, "store");
    first.abort();  // nothing to abort
    first = kv::Store("device");
    CHECK(first.type() == "device");
    first = std::move(second);
    Floats out(3);
    first.pull(0, kv::view(out));
    CHECK(first.type() == "local" && out == value);
    std::vector<kv::Store> stores;
    stores.emplace_back("local");
    stores.push_back(std::move(first));
    CHECK(stores[1].keys().size() == 1);
}

void a_ticket_follows_a_moved_store() {
    Floats value{1, 2, 3};
    kv::Store first("local");
    first.init(0, kv::view(value));
    kv::Ticket sent = first.push(0, kv::view(value), kv::async);
    const kv::Store second = std::move(first);
    sent.wait(patience);
    CHECK(sent.done());
}

void closed_stores_refuse_work() {
    kv::Store store("local");
    Floats value(3);
    store.init(0, kv::view(value));
    store.close(patience);
    store.close(0s);
    const auto closed = KV_ERR_CLOSED;
    CHECK_THROWS(store.init(1, kv::view(value)), closed, "");
    CHECK_THROWS(store.push(0, kv::view(value)), closed, "");
    CHECK_THROWS(store.push(0, kv::view(value), kv::async), closed, "");
    CHECK_THROWS(store.pull(0, kv::view(value)), closed, "");
    CHECK_THROWS(store.pushpull(0, kv::view(value), kv::view(value)), closed, "");
    CHECK_THROWS(store.broadcast(1, kv::view(value), kv::view(value)), closed, "");
    CHECK_THROWS(store.remove(0), closed, "");
    CHECK_THROWS(store.serve(), closed, "");
}

void closing_tells_of_forgotten_failures() {
    kv::Store store("local");
    Floats value(3);
    store.init(0, kv::view(value));
    store.set_updater([](kv::Key, const kv::ConstTensor&, kv::Tensor&) {
        throw std::runtime_error("nobody looked");
    });
    store.push(0, kv::view(value), kv::async).release();
    CHECK_THROWS(store.close(patience), KV_ERR_CALLBACK, "nobody looked");
    store.close(0s);
}

void aborting_fails_what_is_pending() {
    Floats value(3);
    Gate begun;
    Gate gate;
    kv::Store store("local");
    store.init(0, kv::view(value));
    store.set_updater([&](kv::Key, const kv::ConstTensor&, kv::Tensor&) {
        begun.open();
        CHECK(gate.pass());
    });
    kv::Ticket at_work = store.push(0, kv::view(value), kv::async);
    kv::Ticket queued = store.push(0, kv::view(value), kv::async);
    CHECK(begun.pass());
    CHECK_THROWS(store.close(10ms), KV_ERR_TIMEOUT, "");
    store.abort();
    CHECK_THROWS(queued.wait(patience), KV_ERR_CLOSED, "");
    CHECK_THROWS(store.push(0, kv::view(value)), KV_ERR_CLOSED, "");
    gate.open();
    CHECK(kv_wait(store.raw(), at_work.raw(), 60000) != KV_ERR_TIMEOUT);
}

void errors_carry_status_and_message() {
    try {
        kv::Store("nonsense");
        check_failed(__FILE__, __LINE__, "a store of an unknown type");
    } catch (const std::runtime_error& error) {
        CHECK(std::strstr(error.what(), "nonsense") != nullptr);
        const auto* ours = dynamic_cast<const kv::Error*>(&error);
        CHECK(ours != nullptr && ours->status() == KV_ERR_INVALID_ARGUMENT);
    }
    const kv::Error made(KV_ERR_TIMEOUT, "late");
    const kv::Error copy = made;
    CHECK(copy.status() == KV_ERR_TIMEOUT && std::string(copy.what()) == "late");
}

void loggers_hear_and_are_replaced() {
    std::mutex mutex;
    std::vector<std::string> lines;
    const auto state = std::make_shared<int>(0);
    kv::set_logger(KV_LOG_DEBUG, [&, state](kv_log_level level, std::string_view line) {
        const std::lock_guard<std::mutex> lock(mutex);
        CHECK(level >= KV_LOG_ERROR && level <= KV_LOG_DEBUG && !line.empty());
        lines.emplace_back(line);
        throw std::runtime_error("a logger may throw");
    });
    CHECK(state.use_count() == 2);
    { const kv::Store store("local"); }
    {
        const std::lock_guard<std::mutex> lock(mutex);
        CHECK(!lines.empty());
        lines.clear();
    }
    kv::set_logger(KV_LOG_OFF, [state](kv_log_level, std::string_view) { ++*state; });
    CHECK(state.use_count() == 2);
    { const kv::Store store("local"); }
    CHECK(*state == 0);
    kv::set_logger(KV_LOG_DEBUG, nullptr);
    kv::set_interrupt([](void*) -> std::int32_t { return 0; });
    kv::set_interrupt(nullptr);
    CHECK(state.use_count() == 1);
    { const kv::Store store("local"); }
    CHECK(lines.empty());
    const auto unknown = static_cast<kv_log_level>(99);
    const auto quiet = [state](kv_log_level, std::string_view) {};
    CHECK_THROWS(kv::set_logger(unknown, quiet), KV_ERR_INVALID_ARGUMENT, "99");
    CHECK(state.use_count() == 2);  // only `quiet` itself
}

void versions_agree_with_the_header() {
    const std::string wanted = std::to_string(KV_VERSION_MAJOR) + "." +
                               std::to_string(KV_VERSION_MINOR) + "." +
                               std::to_string(KV_VERSION_PATCH);
    CHECK(kv::capable("optimizer") && !kv::capable("teleport"));
    CHECK(kv::version() == wanted && kv::abi_version() == KV_ABI_VERSION);
}

}  // namespace

int main() {
    return run("store", [] {
        stores_open_by_type();
        options_are_checked();
        a_group_is_a_store_of_its_own();
        a_local_store_is_a_cluster_of_one();
        statistics_count();
        stores_move();
        a_ticket_follows_a_moved_store();
        closed_stores_refuse_work();
        closing_tells_of_forgotten_failures();
        aborting_fails_what_is_pending();
        errors_carry_status_and_message();
        loggers_hear_and_are_replaced();
        versions_agree_with_the_header();
    });
}
