// Stores across fork(). A program of its own: nothing has started a thread when it forks.
#include "check.hpp"

#include <sys/wait.h>
#include <unistd.h>

namespace {

using Floats = std::vector<float>;

// Runs in the child; what it finds out is its exit status.
int child_of(kv::Store& store) {
    Floats value(3, 2.0F);
    try {
        store.push(0, kv::view(value));
        return 1;
    } catch (const kv::Error& error) {
        if (error.status() != KV_ERR_FORKED) {
            return 2;
        }
    }
    kv::Store own("local");
    own.init(0, kv::view(value));
    own.push(0, {kv::view(value), kv::view(value)});
    own.pull(0, kv::view(value));
    return value == Floats(3, 4.0F) ? 17 : 3;
}

void a_forked_child_needs_a_store_of_its_own() {
    Floats value(3, 1.0F);
    kv::Store store("local");
    store.init(0, kv::view(value));
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);  // the parent waits
        _exit(child_of(store));
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 17);
    store.push(0, {kv::view(value), kv::view(value)});
    store.pull(0, kv::view(value));
    CHECK(value == Floats(3, 2.0F));
}

void a_child_may_free_what_it_inherited() {
    auto store = std::make_unique<kv::Store>("local");
    const Floats value(3, 1.0F);
    store->init(0, kv::view(value));
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);  // the parent waits
        store.reset();
        _exit(17);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 17);
    CHECK(store->keys().size() == 1);
}

}  // namespace

int main() {
    return run("fork", [] {
        a_forked_child_needs_a_store_of_its_own();
        a_child_may_free_what_it_inherited();
    });
}
