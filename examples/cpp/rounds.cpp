// Five rounds of pushes and pulls, in one process or in a job of many. Only the type differs:
//
//   rounds                     one process, the only worker
//   rounds dist_sync           one process of a job; `kvstore run` starts them all:
//                              kvstore run -n 4 -s 2 --serve-with-program -- rounds dist_sync
//
// In each round every worker pushes its rank + 1. The servers add up what the n workers push, and
// add the sum to the value: after round i it is 1 + i * n * (n + 1) / 2.
#include <kvstore.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

namespace {

constexpr std::chrono::seconds patience{60};

void work(kv::Store& store) {
    const int rank = store.rank();
    std::vector<float> weight(2 * 3, 1);
    const std::vector<float> gradient(2 * 3, static_cast<float>(rank) + 1);

    // All workers make the same calls. A rule of the library runs where the values are.
    store.set_optimizer("test", {{"rescale_grad", 1}});
    store.init(3, kv::view(weight, {2, 3}));
    for (int round = 1; round <= 5; round++) {
        store.push(3, kv::view(gradient, {2, 3}));
        // Waits until the pushes of all workers in this round are in the value.
        store.pull(3, kv::view(weight, {2, 3}));
        if (rank == 0) {
            std::printf("after round %d: %.1f\n", round, static_cast<double>(weight[0]));
        }
    }
    store.barrier(patience);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        kv::Store store(argc > 1 ? argv[1] : "local");
        if (store.role() == KV_ROLE_WORKER) {
            work(store);
        } else {
            store.serve();  // until all workers have closed their stores
        }
        store.close(patience);
        return EXIT_SUCCESS;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return EXIT_FAILURE;
    }
}
