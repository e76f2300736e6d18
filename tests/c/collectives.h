/* Each collective call once. */
#ifndef KVSTORE_TESTS_COLLECTIVES_H
#define KVSTORE_TESTS_COLLECTIVES_H

#include "support.h"

/* All of them give this status; `place` is NULL or receives no ticket. */
static inline void check_collectives(kv_store *store, kv_status wanted, kv_ticket *place) {
    int64_t one = 1, other = 2;
    kv_tensor value = number_tensor(&one), out = number_tensor(&other);
    CHECK_STATUS(kv_allreduce(store, KV_SUM, &value, 1, &out, 1, place), wanted);
    CHECK_STATUS(kv_reduce(store, KV_SUM, 0, &value, 1, &out, 1, place), wanted);
    CHECK_STATUS(kv_reduce_scatter(store, KV_SUM, &value, 1, &out, place), wanted);
    CHECK_STATUS(kv_broadcast_from(store, 0, &value, 1, place), wanted);
    CHECK_STATUS(kv_allgather(store, &value, &out, 1, place), wanted);
    CHECK_STATUS(kv_gather(store, 0, &value, &out, 1, place), wanted);
    CHECK_STATUS(kv_scatter(store, 0, &value, 1, &out, place), wanted);
    CHECK_STATUS(kv_all_to_all(store, &value, 1, &out, 1, place), wanted);
    CHECK(one == 1 && other == 2);
}

#endif
