/*
 * The C side of the Go package: calls that take flat arrays, and callbacks that lead back to Go.
 *
 * cgo does not let C structures in Go memory hold Go pointers. So a call hands over the pinned data
 * pointers in one array and everything else in another, and the tensors are put together here.
 */
#ifndef KVSTORE_GO_SHIM_H
#define KVSTORE_GO_SHIM_H

#include <kvstore.h>
#include <stdint.h>

/* Implemented in callback.go, checkpoint.go and ticket.go. */
extern int32_t kvstoreGoUpdate(uintptr_t context, kv_key key, kv_tensor *input, kv_tensor *stored);
extern void kvstoreGoLog(uintptr_t context, int32_t level, char *message);
extern void kvstoreGoDone(uintptr_t context, kv_status status);
extern void kvstoreGoDrop(uintptr_t context);
/* Gives text of its own, which the library is done with at the next call or the end of the load. */
extern int32_t kvstoreGoNameKey(uintptr_t context, char *tensor, char **key);

enum kvstore_go_operation {
    KVSTORE_GO_INIT,
    KVSTORE_GO_PUSH,
    KVSTORE_GO_PULL,
    KVSTORE_GO_PUSHPULL,
    KVSTORE_GO_BROADCAST,
    KVSTORE_GO_PUSH_ROWS,
    KVSTORE_GO_PULL_ROWS
};

/*
 * Numbers that describe one tensor: these seven, then the extents, then the strides if there are any.
 * The last of the seven is the address of a tensor in GPU memory, which no pointer of Go holds.
 */
enum { KVSTORE_GO_HEADER = 7 };

/* Numbers of one stream: its device, its handle, and room for the handle that was named before. */
enum { KVSTORE_GO_STREAM = 3 };

static inline int64_t *kvstore_go_unpack(kv_tensor *tensor, void *data, int64_t *numbers) {
    int64_t *extents = numbers + KVSTORE_GO_HEADER;
    int32_t ndim = (int32_t)numbers[0];
    int strided = numbers[5] != 0;
    tensor->data = data != NULL ? data : (void *)(uintptr_t)numbers[6];
    tensor->ndim = ndim;
    tensor->dtype = (kv_dtype)numbers[1];
    tensor->device.type = (int32_t)numbers[2];
    tensor->device.id = (int32_t)numbers[3];
    tensor->byte_offset = (uint64_t)numbers[4];
    tensor->shape = extents;
    tensor->strides = strided ? extents + ndim : NULL;
    return extents + ndim + (strided ? ndim : 0);
}

static inline void kvstore_go_unpack_all(kv_tensor *tensors, void **data, int64_t *numbers,
                                         size_t count) {
    for (size_t i = 0; i < count; i++) {
        numbers = kvstore_go_unpack(&tensors[i], data[i], numbers);
    }
}

static inline kv_device kvstore_go_cuda(int64_t id) {
    kv_device device;
    device.type = KV_CUDA;
    device.id = (int32_t)id;
    return device;
}

/* Names streams of GPUs for this thread; `named` receives how many have been. */
static inline kv_status kvstore_go_name_streams(int64_t *streams, size_t count, size_t *named) {
    for (*named = 0; *named < count; (*named)++) {
        int64_t *numbers = streams + *named * KVSTORE_GO_STREAM;
        void *before = NULL;
        kv_status status = kv_stream(kvstore_go_cuda(numbers[0]), &before);
        if (status == KV_OK) {
            status = kv_set_stream(kvstore_go_cuda(numbers[0]), (void *)(uintptr_t)numbers[1]);
        }
        if (status != KV_OK) {
            return status;
        }
        numbers[2] = (int64_t)(uintptr_t)before;
    }
    return KV_OK;
}

/* Names again what was named before. */
static inline void kvstore_go_restore_streams(const int64_t *streams, size_t named) {
    for (; named > 0; named--) {
        const int64_t *numbers = streams + (named - 1) * KVSTORE_GO_STREAM;
        kv_set_stream(kvstore_go_cuda(numbers[0]), (void *)(uintptr_t)numbers[2]);
    }
}

/*
 * The first `count` pairs are values, the next `out_count` are outs; for rows, as many row ids and
 * tensors of rows. `tensors` is room for them.
 */
static inline kv_status kvstore_go_operate(int operation, kv_store *store, const kv_key *keys,
                                           void **data, int64_t *numbers, void *tensors,
                                           size_t count, size_t out_count, int32_t priority,
                                           kv_ticket *ticket) {
    kv_tensor *values = (kv_tensor *)tensors;
    kv_tensor *outs = values + count;
    const kv_key *out_keys = keys + count;
    kvstore_go_unpack_all(values, data, numbers, count + out_count);
    switch (operation) {
    case KVSTORE_GO_INIT:
        return kv_init(store, keys, values, count);
    case KVSTORE_GO_PUSH:
        return kv_push(store, keys, values, count, priority, ticket);
    case KVSTORE_GO_PULL:
        return kv_pull(store, out_keys, outs, out_count, priority, ticket);
    case KVSTORE_GO_PUSHPULL:
        return kv_pushpull(store, keys, values, count, out_keys, outs, out_count, priority, ticket);
    case KVSTORE_GO_PUSH_ROWS:
        return kv_push_rows(store, keys, values, outs, count, priority, ticket);
    case KVSTORE_GO_PULL_ROWS:
        return kv_pull_rows(store, keys, values, outs, count, priority, ticket);
    default:
        return kv_broadcast(store, keys, values, count, out_keys, outs, out_count, priority, ticket);
    }
}

enum kvstore_go_collective {
    KVSTORE_GO_ALLREDUCE,
    KVSTORE_GO_REDUCE,
    KVSTORE_GO_REDUCE_SCATTER,
    KVSTORE_GO_BROADCAST_FROM,
    KVSTORE_GO_ALLGATHER,
    KVSTORE_GO_GATHER,
    KVSTORE_GO_SCATTER,
    KVSTORE_GO_ALL_TO_ALL
};

/* The first `count` tensors are values, the next `out_count` are outs. */
static inline kv_status kvstore_go_exchange(int collective, kv_store *store, int32_t reduction,
                                            int32_t root, void **data, int64_t *numbers,
                                            void *tensors, size_t count, size_t out_count,
                                            kv_ticket *ticket) {
    kv_tensor *values = (kv_tensor *)tensors;
    kv_tensor *outs = values + count;
    kvstore_go_unpack_all(values, data, numbers, count + out_count);
    switch (collective) {
    case KVSTORE_GO_ALLREDUCE:
        return kv_allreduce(store, reduction, values, count, outs, out_count, ticket);
    case KVSTORE_GO_REDUCE:
        return kv_reduce(store, reduction, root, values, count, outs, out_count, ticket);
    case KVSTORE_GO_REDUCE_SCATTER:
        return kv_reduce_scatter(store, reduction, values, count, outs, ticket);
    case KVSTORE_GO_BROADCAST_FROM:
        return kv_broadcast_from(store, root, outs, out_count, ticket);
    case KVSTORE_GO_ALLGATHER:
        return kv_allgather(store, values, outs, out_count, ticket);
    case KVSTORE_GO_GATHER:
        return kv_gather(store, root, values, outs, out_count, ticket);
    case KVSTORE_GO_SCATTER:
        return kv_scatter(store, root, values, count, outs, ticket);
    default:
        return kv_all_to_all(store, values, count, outs, out_count, ticket);
    }
}

/* The first `count` pairs are values, the next `out_count` are outs; kv_bind() copies all but elements. */
static inline kv_status kvstore_go_bind(kv_store *store, const kv_key *keys, void **data,
                                        int64_t *numbers, void *tensors, size_t count,
                                        size_t out_count, kv_bound **bound) {
    kv_tensor *values = (kv_tensor *)tensors;
    kvstore_go_unpack_all(values, data, numbers, count + out_count);
    return kv_bind(store, keys, values, count, keys + count, values + count, out_count, bound);
}

static inline kv_status kvstore_go_update(void *context, kv_key key, const kv_tensor *input,
                                          const kv_tensor *stored) {
    return (kv_status)kvstoreGoUpdate((uintptr_t)context, key, (kv_tensor *)input,
                                      (kv_tensor *)stored);
}

static inline void kvstore_go_log(void *context, int32_t level, const char *message) {
    kvstoreGoLog((uintptr_t)context, level, (char *)message);
}

static inline void kvstore_go_drop(void *context) { kvstoreGoDrop((uintptr_t)context); }

static inline void kvstore_go_done(void *context, kv_ticket ticket, kv_status status) {
    (void)ticket;
    kvstoreGoDone((uintptr_t)context, status);
}

static inline kv_status kvstore_go_on_done(kv_store *store, kv_ticket ticket, uintptr_t context) {
    return kv_on_done(store, ticket, kvstore_go_done, (void *)context, kvstore_go_drop);
}

/* A context of 0 stands for no function. */
static inline kv_status kvstore_go_name_key(void *context, const char *tensor, const char **key) {
    return kvstoreGoNameKey((uintptr_t)context, (char *)tensor, (char **)key);
}

static inline kv_status kvstore_go_load_values(kv_store *store, const char *path, uintptr_t context) {
    return kv_load_values(store, path, kvstore_go_name_key, (void *)context);
}

static inline kv_status kvstore_go_set_updater(kv_store *store, uintptr_t context) {
    if (context == 0) {
        return kv_set_updater(store, NULL, NULL, NULL);
    }
    return kv_set_updater(store, kvstore_go_update, (void *)context, kvstore_go_drop);
}

static inline kv_status kvstore_go_set_logger(int32_t level, uintptr_t context) {
    if (context == 0) {
        return kv_set_logger(level, NULL, NULL, NULL);
    }
    return kv_set_logger(level, kvstore_go_log, (void *)context, kvstore_go_drop);
}

#endif /* KVSTORE_GO_SHIM_H */
