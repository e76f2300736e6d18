/*
 * kvstore.h - the key-value store of data-parallel training.
 *
 * Generated from src/capi/ by `make header`; do not edit.
 *
 * CONVENTIONS
 *
 *  1. Order of parameters: handle, inputs, outputs. Outputs are written on success only, except
 *     where a function says that it writes a required size.
 *  2. An array is a pointer and a count; the pointer may be NULL when the count is 0. NULL anywhere
 *     else is KV_ERR_INVALID_ARGUMENT, unless the parameter says that it may be NULL.
 *  3. What you get from a kv_..._create(), you free, exactly once. Freeing NULL does nothing.
 *  4. Everything else is lent: inputs until the call returns, tensor data until the operation's
 *     ticket completes. Shapes and strides are copied at the call. The library never keeps, frees,
 *     overwrites or aliases a pushed buffer.
 *  5. Strings in are NUL-terminated UTF-8 and copied. Strings out belong to the library; the
 *     function says how long they live. You never free one.
 *  6. A callback comes with a context and a `drop` function that ends the context's life; `drop`
 *     runs exactly once. A callback must not throw or longjmp; THREADS says what it may call.
 *  7. Every fallible function returns a kv_status. kv_last_error() then has a text for people that
 *     names the key, the shapes and dtypes, and what to do; it belongs to the calling thread.
 *  8. A call refused by its checks changes nothing: all pairs are checked first, then applied.
 *  9. Units are in the names: `_ms` milliseconds, `_bytes`; `count` is elements or pairs. A timeout
 *     of -1 waits for ever, 0 does not wait. Less than -1 is KV_ERR_INVALID_ARGUMENT.
 * 10. With `ticket` NULL a data call waits inside, up to the option `timeout_ms`. Otherwise it
 *     queues and returns, and kv_wait(), kv_on_done() or kv_next_done() gives the result. An
 *     operation that is started after the call that started another has returned, on whichever
 *     threads, takes effect after it on the keys they share: the operations of one thread on one
 *     key in call order.
 * 11. The library never prints, never installs a signal handler and never ends your process. A bug
 *     of its own is KV_ERR_INTERNAL: the store is poisoned (KV_ERR_POISONED afterwards) and all
 *     waiters wake up.
 * 12. Results depend on values and call order only: threads, instruction set and timing never
 *     change a bit. The floating-point control state of the calling thread (rounding, flush to
 *     zero) does not matter and is left as it was. Any NaN in gives a NaN out.
 *
 * THREADS
 *
 *   kv_store    any thread, any number at a time; kv_free() alone must be the last call.
 *   kv_config   one thread at a time.
 *   kv_bound    any thread; calls with one handle are made one after the other.
 *   fork()      in the child, handles of the parent answer KV_ERR_FORKED (kv_free() releases them);
 *               new stores may be created. Once CUDA is in use, a child cannot use it (KV_ERR_DEVICE).
 *   updaters    inside one, these calls on its own store work: kv_key_name, kv_key_info, kv_type,
 *               kv_role, kv_rank, kv_num_workers, kv_num_lost, kv_abort. All others give KV_ERR_REENTRANT.
 *   kv_on_done  inside its function, calls on the store that could wait give KV_ERR_REENTRANT.
 *
 * OPTIONS (kv_config_set, else KV_<NAME> in the environment, else the default)
 *
 *   threads         threads that may work on one operation, 1 to 256; default: the processors this
 *                   process may use. Changes speed only, never a result.
 *   isa             auto, scalar, avx2, avx512, neon: the instruction set of the kernels; auto.
 *   timeout_ms      how long a call with `ticket` NULL waits, -1 for ever; 600000.
 *   updater_undo    yes or no: restore the stored value when an updater fails; no. Costs a copy.
 *   sum_order       linear or tree: how the values of a key are added up; linear (left to right).
 *                   Under tree any number of workers gives the same bits; all workers alike.
 *   digests         off, values, all: what each round digests, for digest_log; off.
 *   digest_log      a folder for the digests of each round, for `kvstore diff`; none. Needs digests.
 *   digest_log_bytes  how much of it a process keeps; 1073741824.
 *   cuda            auto, no, or a path: the driver for tensors in CUDA memory, opened at the first
 *                   one; auto (libcuda.so.1).
 *   devices         all, or numbers such as 0,1: the GPUs whose tensors are taken; all.
 *   device_bytes    how much memory keys may take on all GPUs together; default: no bound.
 *   device_checks   yes or no: ask the driver about each pointer to GPU memory first; yes.
 *   device_wait     yes or no: calls with tensors of GPUs return when the GPUs are done; no.
 *   updater_memory  host or device: what an updater gets for keys on a GPU; host (copies).
 *
 * Of the distributed types; local stores check them and go on:
 *
 *   job               any text: keeps apart jobs that meet at one address.
 *   root              host:port of the scheduler.
 *   role              worker, reader, server, scheduler: what this process is; worker.
 *   rank              number of this process among those of its role; default: the next free one.
 *   num_workers       how many workers the job has.
 *   num_servers       how many servers it has.
 *   servers           embedded, or a number: who serves where a launcher such as torchrun, srun or mpirun
 *                     has started all processes alike; embedded: each worker's process has a server.
 *   bind              host or host:port where this process listens; default: found from root.
 *   start_timeout_ms  how long the start waits for those that are missing; 60000.
 *   peer_timeout_ms   after how long a silence a process is lost, never before; all processes know at
 *                     most a quarter of this time later; 5000.
 *   max_rounds_ahead  dist_sync: rounds of a key that a worker may push ahead of the others; 1.
 *   staleness         dist_async: pushes of a key by which a worker may lead; default: no bound.
 *   slice_bytes       size of the pieces in which values travel; 262144.
 *   hold_bytes        what a server holds of values whose turn has not come; 268435456.
 *   on_worker_loss    fail or continue: rounds that wait for a lost worker; fail.
 *   server_updater    yes or no: workers may call kv_set_updater(), without an effect there; no.
 *   token             the join token of the job, never shown; default: none.
 *   token_file        the same, in a file.
 *   token_by_rank     yes or no: workers and readers need the token of their rank; no.
 *   integrity         yes or no: connections with a token are sealed by keys made of it; no.
 *   tls_ca_file       authorities to believe, in PEM; the three files turn TLS on; default: none.
 *   tls_cert_file     the certificate of this process, in PEM.
 *   tls_key_file      its key, in PEM.
 *   tls_verify_names  yes or no: a certificate must name the address that was called; yes.
 *   insecure          yes or no: may listen off the loopback without any of these; no.
 *   metrics           scheduler: the host:port where Prometheus finds the numbers of the job; none.
 *   trace             each process writes what it did to a file of this name and its own; none.
 *   trace_rounds      the first and the last round of that, such as 5-9; 1-10.
 *   shm               yes or no: processes of one machine share memory for values; yes.
 *   connections       workers: TCP connections with each server, 2 to 16; 2, or 8 from 5 ms on.
 *   transport         auto, shm, ucx, tcp: what carries values between processes; auto.
 */
#ifndef KVSTORE_H
#define KVSTORE_H


#include <stddef.h>
#include <stdint.h>

/**
 * Major version of the library.
 */
#define KV_VERSION_MAJOR 0

/**
 * Minor version of the library.
 */
#define KV_VERSION_MINOR 1

/**
 * Patch version of the library.
 */
#define KV_VERSION_PATCH 0

/**
 * Version of the binary interface, the number in the soname. Raised by any incompatible change.
 */
#define KV_ABI_VERSION 0

/**
 * A flag of kv_set_clipping(): a push whose norm is not finite fails, instead of being skipped.
 */
#define KV_CLIP_FAIL 1

/**
 * How kv_commit() has ended a transaction: its pushes are kept.
 */
#define KV_COMMIT_KEPT 0

/**
 * The norm of its gradients is above that of kv_set_clipping(), and its pushes are taken back: push the gradients
 * again, by one call, which scales them.
 */
#define KV_COMMIT_EXCEEDED 1

/**
 * The norm of its gradients is not finite, and its pushes are taken back: it counts as a skipped push.
 */
#define KV_COMMIT_SKIPPED 2

/**
 * The result of a call. 1-19 are the caller's mistake, 20-39 mean "not now", 40-59 a peer is gone,
 * 60-79 come from the environment (memory, files, network), 90-99 are a bug of this library.
 */
enum kv_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Success.
     */
    KV_OK = 0,
    /**
     * An argument is NULL, out of range, misaligned, or not valid UTF-8.
     */
    KV_ERR_INVALID_ARGUMENT = 1,
    /**
     * Known, but not served by this build or this call: a store type, rows in CUDA memory.
     */
    KV_ERR_UNSUPPORTED = 2,
    /**
     * An option has an unknown name or a value that does not fit.
     */
    KV_ERR_OPTION = 3,
    /**
     * The key has not been initialised, or was removed.
     */
    KV_ERR_KEY_NOT_FOUND = 4,
    /**
     * The key has been initialised before.
     */
    KV_ERR_KEY_EXISTS = 5,
    /**
     * Two names have the same 63-bit hash, in this store or in its job; rename one of them.
     */
    KV_ERR_NAME_COLLISION = 6,
    /**
     * A tensor's shape differs from the key's.
     */
    KV_ERR_SHAPE_MISMATCH = 7,
    /**
     * A tensor's dtype differs from the key's and cannot be converted.
     */
    KV_ERR_DTYPE_MISMATCH = 8,
    /**
     * An out overlaps another tensor of the call, or itself.
     */
    KV_ERR_OVERLAP = 9,
    /**
     * The ticket is stale, or was never issued by this store.
     */
    KV_ERR_TICKET = 10,
    /**
     * The updater returned an error, threw an exception or panicked.
     */
    KV_ERR_CALLBACK = 11,
    /**
     * The store was called from inside one of its own updaters, or from another callback where the
     * call could wait.
     */
    KV_ERR_REENTRANT = 12,
    /**
     * The buffer is too small; the required size has been written.
     */
    KV_ERR_BUFFER_TOO_SMALL = 13,
    /**
     * The store has been closed or aborted.
     */
    KV_ERR_CLOSED = 14,
    /**
     * The store belongs to the parent process: it was created before a fork().
     */
    KV_ERR_FORKED = 15,
    /**
     * The call is not for processes of this role, see kv_role().
     */
    KV_ERR_ROLE = 16,
    /**
     * The processes of a job do not agree: another optimizer, another first value's shape.
     */
    KV_ERR_DIFFERS = 17,
    /**
     * The deadline passed; the message says what is missing.
     */
    KV_ERR_TIMEOUT = 20,
    /**
     * The operation was cancelled before it took effect in full.
     */
    KV_ERR_CANCELLED = 21,
    /**
     * An operation with a ticket did not end within the option `timeout_ms`, and has failed; the message says
     * what was missing. Its buffers are the caller's again.
     */
    KV_ERR_EXPIRED = 22,
    /**
     * A process of the job that the call needs is gone; the message has its role, rank, address.
     */
    KV_ERR_PEER_LOST = 40,
    /**
     * This process was not heard for too long, and the job went on without it.
     */
    KV_ERR_EVICTED = 41,
    /**
     * The job does not take this process: its rank is taken, or it expects another job.
     */
    KV_ERR_REFUSED = 42,
    /**
     * Not enough memory.
     */
    KV_ERR_OUT_OF_MEMORY = 60,
    /**
     * A file cannot be read or written; the message has the system's reason.
     */
    KV_ERR_IO = 61,
    /**
     * A file is cut off or altered.
     */
    KV_ERR_CORRUPT = 62,
    /**
     * An address cannot be used or reached: a port in use, a name that no resolver knows.
     */
    KV_ERR_NETWORK = 63,
    /**
     * A GPU failed, or cannot be used; the message has CUDA's name of the error.
     */
    KV_ERR_DEVICE = 64,
    /**
     * A bug of this library; the store is poisoned from now on.
     */
    KV_ERR_INTERNAL = 90,
    /**
     * The store met a bug of this library before and refuses to go on.
     */
    KV_ERR_POISONED = 91,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kv_status kv_status;
#else
typedef int32_t kv_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Element type, a DLPack `DLDataType` as one number: code | bits << 8 | lanes << 16.
 */
enum kv_dtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Signed 8-bit integer.
     */
    KV_I8 = 67584,
    /**
     * Signed 16-bit integer.
     */
    KV_I16 = 69632,
    /**
     * Signed 32-bit integer.
     */
    KV_I32 = 73728,
    /**
     * Signed 64-bit integer.
     */
    KV_I64 = 81920,
    /**
     * Unsigned 8-bit integer.
     */
    KV_U8 = 67585,
    /**
     * Unsigned 16-bit integer.
     */
    KV_U16 = 69633,
    /**
     * Unsigned 32-bit integer.
     */
    KV_U32 = 73729,
    /**
     * Unsigned 64-bit integer.
     */
    KV_U64 = 81921,
    /**
     * IEEE 754 binary16.
     */
    KV_F16 = 69634,
    /**
     * IEEE 754 binary32.
     */
    KV_F32 = 73730,
    /**
     * IEEE 754 binary64.
     */
    KV_F64 = 81922,
    /**
     * bfloat16: the upper half of an IEEE 754 binary32.
     */
    KV_BF16 = 69636,
    /**
     * Two binary32, the real part first. Opaque, as all below: stored and copied, never added.
     */
    KV_C64 = 81925,
    /**
     * Two binary64, the real part first; aligned to 8 bytes.
     */
    KV_C128 = 98309,
    /**
     * A truth value: a byte, 0 or 1.
     */
    KV_BOOL = 67590,
    /**
     * Float of 8 bits: 4 of exponent, 3 of mantissa, no infinities.
     */
    KV_F8_E4M3FN = 67594,
    /**
     * The same with one zero and another bias.
     */
    KV_F8_E4M3FNUZ = 67595,
    /**
     * Float of 8 bits: 5 of exponent, 2 of mantissa.
     */
    KV_F8_E5M2 = 67596,
    /**
     * The same with one zero, another bias and no infinities.
     */
    KV_F8_E5M2FNUZ = 67597,
    /**
     * A power of two in 8 bits, a scale.
     */
    KV_F8_E8M0FNU = 67598,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kv_dtype kv_dtype;
#else
typedef uint32_t kv_dtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Kinds of device memory, numbered as in DLPack.
 */
enum kv_device_type
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Ordinary memory. Any device id is accepted; it has no effect.
     */
    KV_CPU = 1,
    /**
     * CUDA device memory, for the data calls of `local` and `device` stores on whole values.
     */
    KV_CUDA = 2,
    /**
     * CUDA pinned host memory, used like `KV_CPU`.
     */
    KV_CUDA_HOST = 3,
    /**
     * CUDA managed memory. Answered with `KV_ERR_UNSUPPORTED` by this version.
     */
    KV_CUDA_MANAGED = 13,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kv_device_type kv_device_type;
#else
typedef int32_t kv_device_type;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What a process is in a job.
 */
enum kv_node_role
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Pushes and pulls. A local store's process is always one.
     */
    KV_ROLE_WORKER = 0,
    /**
     * Holds keys and merges pushes, in kv_serve().
     */
    KV_ROLE_SERVER = 1,
    /**
     * Brings the others together, in kv_serve().
     */
    KV_ROLE_SCHEDULER = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kv_node_role kv_node_role;
#else
typedef int32_t kv_node_role;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How the values of a collective call become one; see kv_allreduce().
 */
enum kv_reduction
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The sum.
     */
    KV_SUM = 0,
    /**
     * The sum of floats, divided by the number of values.
     */
    KV_MEAN = 1,
    /**
     * The largest: of equal ones the first, and the first NaN.
     */
    KV_MAX = 2,
    /**
     * The smallest: of equal ones the first, and the first NaN.
     */
    KV_MIN = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kv_reduction kv_reduction;
#else
typedef int32_t kv_reduction;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How much the logger hears; each level includes those before it.
 */
enum kv_log_level
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Nothing.
     */
    KV_LOG_OFF = 0,
    /**
     * Bugs of this library.
     */
    KV_LOG_ERROR = 1,
    /**
     * Things that lose work: failures that no call has reported, a free with operations pending.
     */
    KV_LOG_WARN = 2,
    /**
     * Stores opened and closed.
     */
    KV_LOG_INFO = 3,
    /**
     * Keys made and removed, updaters set, threads started.
     */
    KV_LOG_DEBUG = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kv_log_level kv_log_level;
#else
typedef int32_t kv_log_level;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Keys with their values and outs, for calls that repeat; opaque.
 */
typedef struct kv_bound kv_bound;

/**
 * Options for kv_create(); opaque.
 */
typedef struct kv_config kv_config;

/**
 * A store; opaque.
 */
typedef struct kv_store kv_store;

/**
 * Receives one log line, UTF-8 without a newline, lent for the call. Must not call the library.
 */
typedef void (*kv_logger)(void *context, int32_t level, const char *message);

/**
 * Ends the life of a callback's context. Called exactly once, on any thread; may be NULL.
 */
typedef void (*kv_drop)(void *context);

/**
 * Says whether a call that waits is to end: any number but 0 ends it. Called on the thread that waits.
 */
typedef int32_t (*kv_interrupt_check)(void *context);

/**
 * A key. 0 to 2^63-1 are yours; numbers with the top bit set stand for names, see `kv_intern`.
 */
typedef uint64_t kv_key;

/**
 * What a key holds, see kv_digest().
 */
typedef struct kv_key_digest {
    /**
     * Number of the key's round; in a local store of its pushes since its init.
     */
    uint64_t round;
    /**
     * Digest of the value.
     */
    uint64_t value;
    /**
     * Digest of the optimizer's state; 0 without one.
     */
    uint64_t state;
} kv_key_digest;

/**
 * Who took part in a round, see kv_last_round().
 */
typedef struct kv_round {
    /**
     * Set it to `sizeof(kv_round)`; later releases have more fields behind the last one.
     */
    size_t struct_size;
    /**
     * Number of the key's last closed round; in a local store of its pushes since its init. 0 before the
     * first.
     */
    uint64_t round;
    /**
     * Number of workers whose pushes the round has.
     */
    uint64_t contributors;
    /**
     * Sum of the weights of these pushes; 0 if they had none.
     */
    double total_weight;
} kv_round;

/**
 * Where a tensor lives; the layout of DLPack's `DLDevice`.
 */
typedef struct kv_device {
    /**
     * One of `kv_device_type`. Use the enumerator's number.
     */
    int32_t type;
    /**
     * Which one of its kind.
     */
    int32_t id;
} kv_device;

/**
 * A view of memory that somebody else owns.
 *
 * Exactly the layout of DLPack's `DLTensor` (major version 1): a `DLTensor *` can be passed as it
 * is. `data + byte_offset` must be aligned to the element. For an out the memory is written.
 */
typedef struct kv_tensor {
    /**
     * The first byte of the allocation. May be NULL when the tensor has no elements.
     */
    void *data;
    /**
     * Where `data` lives.
     */
    struct kv_device device;
    /**
     * Number of dimensions, 0 for a single number.
     */
    int32_t ndim;
    /**
     * Element type.
     */
    kv_dtype dtype;
    /**
     * `ndim` extents, each 0 or more. May be NULL when `ndim` is 0.
     */
    int64_t *shape;
    /**
     * `ndim` strides in elements, possibly negative; NULL means row-major without gaps.
     */
    int64_t *strides;
    /**
     * Offset of the first element from `data`, in bytes.
     */
    uint64_t byte_offset;
} kv_tensor;

/**
 * A pending operation: a plain number, nothing to free. 0 is never a ticket.
 */
typedef uint64_t kv_ticket;

/**
 * Is told that an operation has ended, with what kv_wait() gives for its ticket; see kv_on_done().
 *
 * Calls on the same store that could wait give `KV_ERR_REENTRANT`. Those that queue an operation
 * work, but for kv_broadcast(); so do kv_on_done(), kv_watch(), kv_next_done(), kv_wait() for an
 * operation that has ended, and what works inside an updater. Must not unwind or `longjmp`.
 */
typedef void (*kv_done_callback)(void *context, kv_ticket ticket, kv_status status);

/**
 * Merges a sum into the stored value.
 *
 * Of a key on a GPU the tensors are copies in host memory, or with the option
 * `updater_memory=device` arrays on the GPU, as `device` says. Queue work on those on the stream that
 * kv_stream() gives, whose context is current, and return.
 *
 * `input` is the sum of the values of one push; read it only, it may be the caller's own buffer.
 * `stored` is the stored value; change it in place. Both have the key's dtype and shape, are
 * row-major with `strides` NULL and `byte_offset` 0, and are lent for the call. Return `KV_OK`, or
 * any other number to make the push fail with `KV_ERR_CALLBACK`. Must not unwind, `longjmp`, or
 * call into the same store (`KV_ERR_REENTRANT`).
 */
typedef kv_status (*kv_updater)(void *context,
                                kv_key key,
                                const struct kv_tensor *input,
                                const struct kv_tensor *stored);

/**
 * Names the key of a tensor in a file of another program; see kv_load_values().
 *
 * `*key` is `tensor` at the call: leave it for the same name, or set it to another one in UTF-8, which stays
 * valid until the next call or until kv_load_values() returns; NULL leaves the tensor out. Return `KV_OK`,
 * or any other number to end the load with `KV_ERR_CALLBACK`. Must not unwind, `longjmp`, or call into
 * the same store (`KV_ERR_REENTRANT`).
 */
typedef kv_status (*kv_key_namer)(void *context, const char *tensor, const char **key);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Creates an empty set of options.
 *
 * @param config  receives the handle; free it with kv_config_free(). It may be freed as soon as
 *                kv_create() has returned, and may serve several stores.
 * @return `KV_ERR_INVALID_ARGUMENT` if `config` is NULL.
 *
 * Threads: any.
 */
kv_status kv_config_create(struct kv_config **config);

/**
 * Sets one option; the last value set for a name counts.
 *
 * The table of options is in the header's first chapter and in docs/use/config.md. Options of another
 * store type are checked and otherwise ignored, so that one source serves all types.
 *
 * @param config  the options to change.
 * @param name    NUL-terminated UTF-8, copied.
 * @param value   NUL-terminated UTF-8, copied.
 * @return `KV_ERR_OPTION` for an unknown name (the message lists near ones) or a value that does
 *         not fit; nothing is changed then.
 *
 * Threads: one at a time per `kv_config`.
 */
kv_status kv_config_set(struct kv_config *config,
                        const char *name,
                        const char *value);

/**
 * Frees the options. Stores created with them are not affected. NULL does nothing.
 *
 * Threads: no other call with this `config` may be running.
 */
void kv_config_free(struct kv_config *config);

/**
 * Creates a store.
 *
 * Types, in any case: `local` (aliases `local_update_cpu`, `local_allreduce_cpu`) and `device`
 * (alias `local_allreduce_device`) live in this process; on CPU memory they give the same results.
 * `dist_sync` (alias `dist`), `dist_async`, `dist_device_sync` (`dist_sync_device`, `dist_device`)
 * and `dist_device_async` are one job of many processes; the option `role` says what this one is,
 * and the call returns when the whole job is there. A build without them answers
 * `KV_ERR_UNSUPPORTED`.
 *
 * @param type    NUL-terminated type string.
 * @param config  options, or NULL for the defaults; copied.
 * @param store   receives the handle; free it with kv_free().
 * @return `KV_ERR_INVALID_ARGUMENT` for an unknown type (the message lists the valid ones),
 *         `KV_ERR_UNSUPPORTED`, `KV_ERR_OPTION` (an option of the type is missing, or an
 *         environment variable has a bad value). Distributed: `KV_ERR_TIMEOUT` (the message names
 *         who is missing), `KV_ERR_REFUSED`, `KV_ERR_NETWORK`.
 *
 * Threads: any. Local stores start no thread and open no socket. Blocks: distributed stores, up to
 * the option `start_timeout_ms`. The system looks up the names of hosts in a time of its own, which
 * neither this option nor kv_set_interrupt() ends.
 */
kv_status kv_create(const char *type, const struct kv_config *config, struct kv_store **store);

/**
 * Opens the store of a group: some of the workers of a job, with keys, rounds, rules, barriers and
 * collective calls of their own, over the processes and connections of the job.
 *
 * The workers of the group make this call, in any order, and no others. It returns when all servers
 * know the group, and does not wait for the other workers: the first call that needs them does.
 * In the group, kv_rank() is the place of this worker among the ascending `ranks`, kv_num_workers()
 * is `count`, and roots of collective calls are such places. Errors name workers by their rank in
 * the job; a lost worker ends the rounds and barriers of its groups, not those of others. Sums are
 * in the order of ranks.
 *
 * The new store has the options of `store`, no rule, no codec and no keys; its keys are others than
 * those of the same name in the job or in other groups. It has no updater. A worker that closes or
 * frees it leaves the group, and the others go on without it; once all have left, the servers drop
 * its keys. The end of the job's store ends those of its groups: their calls give `KV_ERR_CLOSED`.
 * A local store has groups of worker 0 alone.
 *
 * @param name   NUL-terminated, not empty, at most 255 bytes; the same in all workers of the group.
 * @param ranks  `count` ranks in the job, in any order, with that of this worker; copied.
 * @param group  receives the handle; free it with kv_free(), before or after that of the job.
 * @return `KV_ERR_INVALID_ARGUMENT`: a bad name, one that is open in this process, or ranks that are
 *         no workers, there twice, or without this worker. `KV_ERR_DIFFERS`: another worker has made
 *         the group with other ranks. `KV_ERR_UNSUPPORTED`: `store` is of a group, or a server is of
 *         an earlier release. `KV_ERR_ROLE` on a server, a scheduler or a reader.
 *         `KV_ERR_TIMEOUT`, `KV_ERR_PEER_LOST`.
 *
 * Threads: any. Blocks: up to the option `timeout_ms`.
 */
kv_status kv_group(struct kv_store *store,
                   const char *name,
                   const int32_t *ranks,
                   size_t count,
                   struct kv_store **group);

/**
 * Finishes all pending operations and closes the store; afterwards only kv_free() is of use.
 *
 * @param timeout_ms  how long to wait, -1 for ever, 0 not at all.
 * @return `KV_ERR_TIMEOUT`: operations, or functions of kv_on_done(), are still at work, the store
 *         stays open. Any other error is the first failure that no call has reported:
 *         the store is closed then. Closing a closed store succeeds.
 *
 * Threads: any. Blocks: up to `timeout_ms`.
 */
kv_status kv_close(struct kv_store *store, int64_t timeout_ms);

/**
 * Fails every pending operation with `KV_ERR_CLOSED`, now, and closes the store. Never waits.
 *
 * Buffers of an operation that is at work at this moment stay lent until kv_wait() on its ticket
 * has returned anything but `KV_ERR_TIMEOUT`, or until kv_free() has returned. NULL does nothing.
 *
 * Threads: any, also from inside an updater.
 */
void kv_abort(struct kv_store *store);

/**
 * Frees the store and all its values. NULL does nothing.
 *
 * Pending operations are cancelled; the one at work is waited for, at most `timeout_ms` of the
 * store's options. When this returns, the updater's `drop` and the functions of kv_on_done() have
 * run. Only if an operation is still at work then (an updater that never returns), its part of the
 * store is given up, not freed.
 *
 * Threads: no other call with this store may be running. From inside an updater of the store, or a
 * function of kv_on_done(), it does nothing but leave `KV_ERR_REENTRANT`'s text in kv_last_error().
 */
void kv_free(struct kv_store *store);

/**
 * Gives the canonical name of the store's type, such as `local`.
 *
 * @param type  receives a string of the library; it lives for ever.
 *
 * Threads: any.
 */
kv_status kv_type(struct kv_store *store, const char **type);

/**
 * Gives the role of this process in the job, one of `kv_node_role`. Local stores: a worker.
 *
 * @param role  receives the role.
 *
 * Threads: any.
 */
kv_status kv_role(struct kv_store *store, int32_t *role);

/**
 * Gives the rank of this process among those of its role, from 0. Local stores: 0.
 *
 * @param rank  receives the rank.
 *
 * Threads: any.
 */
kv_status kv_rank(struct kv_store *store, int32_t *rank);

/**
 * Gives the number of workers. Local stores: 1.
 *
 * @param count  receives the number.
 *
 * Threads: any.
 */
kv_status kv_num_workers(struct kv_store *store, int32_t *count);

/**
 * Gives the number of workers and servers that the job has declared lost, as far as this process has been
 * told: it asks no other process. With `on_worker_loss=fail` other calls fail once it is not 0. Local
 * stores: 0.
 *
 * @param count  receives the number.
 *
 * Threads: any.
 */
kv_status kv_num_lost(struct kv_store *store,
                      int32_t *count);

/**
 * Waits until all workers have arrived here. Local stores: returns at once.
 *
 * Workers that have called kv_done() or kv_close() are not waited for.
 *
 * @param timeout_ms  how long to wait, -1 for ever, 0 not at all.
 * @return `KV_ERR_TIMEOUT` (the message names the workers that have not come; called again, it
 *         waits for the same barrier),
 *         `KV_ERR_PEER_LOST`, `KV_ERR_EVICTED`, `KV_ERR_ROLE` on a server or scheduler.
 *
 * Threads: any. Blocks: up to `timeout_ms`.
 */
kv_status kv_barrier(struct kv_store *store, int64_t timeout_ms);

/**
 * Says that this worker pushes no more: no round waits for it from now on. It may still pull, and
 * save what there is when the others push no more either. Local stores: no effect.
 *
 * Threads: any.
 */
kv_status kv_done(struct kv_store *store);

/**
 * Waits until all workers have made this call, whether they have called kv_done() or not. Then none of them is
 * done: rounds and barriers wait for all again. So a worker with fewer batches calls kv_done() at its end of
 * an epoch, and all call kv_resume() before the next one. Local stores: no effect.
 *
 * Waits for the operations of this worker first; all rounds have closed when it returns. The numbers of rounds go
 * on with the largest one of all keys, so some may be left out. A worker that was done gets the settings that
 * other workers have changed meanwhile; a key that they have removed is missing at its next use.
 *
 * @param timeout_ms  how long to wait, -1 for ever, 0 not at all.
 * @return `KV_ERR_TIMEOUT` (the message names the workers that have not made the call; this one is done then,
 *         and joins the same resume when it is called again), `KV_ERR_PEER_LOST`, `KV_ERR_EVICTED`,
 *         `KV_ERR_ROLE` on a server, a scheduler or a reader, `KV_ERR_UNSUPPORTED` in a job with a server or a
 *         scheduler of an earlier release.
 *
 * Threads: any. Blocks: up to `timeout_ms`.
 */
kv_status kv_resume(struct kv_store *store,
                    int64_t timeout_ms);

/**
 * Serves as a server or a scheduler until the job ends.
 *
 * On a server pushes merge here, by the updater that kv_set_updater() has set on this store, or by
 * the optimizer that the workers set. The updater runs on threads of the library. kv_abort(), on
 * another thread, ends the call.
 *
 * @return `KV_OK` when all workers have left. `KV_ERR_ROLE` on a worker and on local stores,
 *         `KV_ERR_TIMEOUT` (the job did not start; the message names who is missing),
 *         `KV_ERR_REFUSED`, `KV_ERR_EVICTED`, `KV_ERR_PEER_LOST` (the scheduler is gone and was
 *         not started again), `KV_ERR_CLOSED` after kv_abort().
 *
 * Threads: any, one at a time. Blocks: until the job ends.
 */
kv_status kv_serve(struct kv_store *store);

/**
 * Writes counters and settings of the store as one JSON object, UTF-8.
 *
 * Members are added over time, never renamed: `type`, `keys`, `bytes` (stored values), `pushes`,
 * `pulls` (per key), `push_bytes`, `pull_bytes`, `updater_calls`, `pending`, `failed` (kept for
 * kv_wait_all()), `threads`, `isa`, `compression` (the codec, or `none`), `compression_params`,
 * `pinned_bytes`, `devices` (the GPUs that this process uses; docs/operate/operations.md has their
 * members), with the option `digest_log` that name with `rounds` and `lost` (written, and not);
 * in jobs also `role`, `rank`, `num_workers` and `node` (as `kvstore status` shows it).
 *
 * @param buffer    receives at most `capacity` bytes with a terminating NUL. NULL with
 *                  `capacity` 0 asks for the length only.
 * @param capacity  size of `buffer` in bytes.
 * @param length    receives the length without the NUL, also with `KV_ERR_BUFFER_TOO_SMALL`.
 *                  May be NULL.
 * @return `KV_ERR_BUFFER_TOO_SMALL` if `capacity` is not 0 and too small; `buffer` is unchanged.
 *
 * Threads: any.
 */
kv_status kv_stats(struct kv_store *store, char *buffer, size_t capacity, size_t *length);

/**
 * Sends what the library has to say to a function of yours; process-wide, silent by default.
 *
 * @param level    how much to hear, one of `kv_log_level`.
 * @param log      the function, or NULL to be silent again. Called from any thread, several at a
 *                 time.
 * @param context  passed to `log` as it is.
 * @param drop     called once with `context` when it is no longer used, also when this call
 *                 fails; may be NULL.
 * @return `KV_ERR_INVALID_ARGUMENT` for an unknown level.
 *
 * Threads: any.
 */
kv_status kv_set_logger(int32_t level, kv_logger log, void *context, kv_drop drop);

/**
 * Has the calls of this thread ask a function of yours, while they wait, whether to go on.
 *
 * For hosts that handle signals between their own steps, as Python does, or that have a button to
 * stop: a call that waits asks every 50 ms, on the thread that waits. A call that is told to end
 * withdraws what it has begun, as a timeout does, and gives `KV_ERR_CANCELLED`: kv_create(),
 * kv_init(), every data call with `ticket` NULL, kv_remove(), kv_barrier(), kv_done(), the settings,
 * kv_save(), kv_load(), kv_serve(). kv_wait(), kv_wait_all(), kv_cancel() and kv_close() give
 * `KV_ERR_TIMEOUT`, because the operations that they wait for go on. A call that does not wait asks
 * nothing, and costs what it does without a check.
 *
 * @param check    the function, or NULL to ask nothing, as in the beginning. It stays in use by this
 *                 thread until the next kv_set_interrupt() or the thread's end. Inside of it,
 *                 kv_abort() and the calls that work inside of an updater work; all others give
 *                 `KV_ERR_REENTRANT`, with every store.
 * @param context  passed to `check` as it is.
 *
 * Threads: any; each has its own check.
 */
kv_status kv_set_interrupt(kv_interrupt_check check,
                           void *context);

/**
 * Gives the key of a name, and remembers the name in this store.
 *
 * The key is the top bit plus the low 63 bits of SipHash-2-4 (zero key) over the name's bytes: the
 * same in every process. Interning a name again gives the same key.
 *
 * @param name  NUL-terminated UTF-8, copied; may be empty.
 * @param key   receives the key.
 * @return `KV_ERR_NAME_COLLISION` if another name of this store has the same hash.
 *
 * Threads: any.
 */
kv_status kv_intern(struct kv_store *store, const char *name, kv_key *key);

/**
 * Gives the name that a key was interned with.
 *
 * @param name  receives a string of the library; it lives until kv_free().
 * @return `KV_ERR_KEY_NOT_FOUND` for an integer key, and for a name this store has never seen.
 *
 * Threads: any, also from inside an updater.
 */
kv_status kv_key_name(struct kv_store *store, kv_key key, const char **name);

/**
 * Gives a key's dtype and shape. Each output may be NULL.
 *
 * @param dtype     receives the dtype.
 * @param ndim      receives the number of dimensions, also with `KV_ERR_BUFFER_TOO_SMALL`.
 * @param shape     receives `ndim` extents; NULL with `capacity` 0 asks for the rest only.
 * @param capacity  how many extents `shape` has room for.
 * @return `KV_ERR_KEY_NOT_FOUND`; `KV_ERR_BUFFER_TOO_SMALL` if `shape` is not NULL and too small.
 *
 * Threads: any, also from inside an updater.
 */
kv_status kv_key_info(struct kv_store *store,
                      kv_key key,
                      kv_dtype *dtype,
                      int32_t *ndim,
                      int64_t *shape,
                      int32_t capacity);

/**
 * Lists the initialised keys: integers in ascending order, then names in order of their init.
 *
 * @param keys      receives the keys; NULL with `capacity` 0 asks for the number only.
 * @param capacity  how many keys there is room for.
 * @param count     receives the number of keys, also with `KV_ERR_BUFFER_TOO_SMALL`.
 * @return `KV_ERR_BUFFER_TOO_SMALL` if `keys` is not NULL and too small; it is unchanged then.
 *
 * Threads: any.
 */
kv_status kv_keys(struct kv_store *store, kv_key *keys, size_t capacity, size_t *count);

/**
 * Gives the round of each key, and digests of its value and of its optimizer's state.
 *
 * Equal bits have equal digests, whatever servers, slices, transports, threads and instruction sets
 * have made them: to compare two runs, compare these numbers. A digest is the CRC-64/NVME of the
 * little-endian bytes; docs/use/semantics.md defines it.
 *
 * Takes effect after the earlier operations of this thread. Each key is seen at one moment between
 * two pushes; in a job in the round of this worker's last push of it, as kv_pull() sees it.
 *
 * @param keys     `count` initialised keys, in any order; a key may stand there twice.
 * @param digests  receives `count` digests; unchanged after an error.
 * @param count    number of keys; with 0 nothing happens.
 * @return `KV_ERR_KEY_NOT_FOUND`; `KV_ERR_TIMEOUT` if a key stays in use, or if in a job the push of
 *         another worker is missing, or slices of the key are never of one round.
 *
 * Threads: any. Blocks: like kv_pull(). Complexity: one pass over each value and its state.
 */
kv_status kv_digest(struct kv_store *store,
                    const kv_key *keys,
                    struct kv_key_digest *digests,
                    size_t count);

/**
 * Gives the last round of a key: how many workers took part in it, and the sum of their weights.
 *
 * Takes effect after the earlier operations of this thread; in a job it is the round of this worker's last
 * push of the key, as kv_pull() sees it. With `on_worker_loss=continue` slices of a key may have the push of a
 * lost worker or not: the fewest contributors of a slice count.
 *
 * @param key    an initialised key.
 * @param round  `struct_size` set by the caller; receives the rest, unchanged after an error.
 * @return `KV_ERR_KEY_NOT_FOUND`; `KV_ERR_INVALID_ARGUMENT` if `struct_size` is less than the first release's;
 *         the error of the round if it was not merged, as from kv_pull(); `KV_ERR_TIMEOUT` if a key stays in
 *         use, or if in a job the push of another worker is missing, or slices of the key are never of one
 *         round; `KV_ERR_UNSUPPORTED` in a job with a server of an earlier release.
 *
 * Threads: any. Blocks: like kv_pull().
 */
kv_status kv_last_round(struct kv_store *store,
                        kv_key key,
                        struct kv_round *round);

/**
 * Stores the first value of each key; the value is copied.
 *
 * @param keys    `count` different keys; a name's key must have been interned in this store.
 * @param values  `count` tensors that fix each key's dtype and shape. Lent until the call returns.
 * @param count   number of pairs; with 0 nothing happens.
 * @return `KV_ERR_KEY_EXISTS` (also for a key that stands twice in the list),
 *         `KV_ERR_KEY_NOT_FOUND` (a name never interned), `KV_ERR_OUT_OF_MEMORY`; no key is
 *         stored then. `KV_ERR_NAME_COLLISION` if another worker of the job has the key under
 *         another name; so do other calls that use it.
 *
 * Threads: any. Complexity: one pass over each value.
 */
kv_status kv_init(struct kv_store *store,
                  const kv_key *keys,
                  const struct kv_tensor *values,
                  size_t count);

/**
 * Adds up the values of each key and merges the sum into the stored value.
 *
 * The values of one key (one per device) are added left to right in call order, or by the tree of
 * the option `sum_order`, and rounded once to the key's dtype; f16 and bf16 are added in f32;
 * integers wrap; one value is copied bit for bit. The sum then replaces the stored value, or goes
 * through the updater. Equal keys need not be adjacent. Keys are processed in ascending order of
 * integers, then names in order of their init. A value of another float dtype is converted to the
 * key's first. Values of opaque dtypes are never added: the only value of a key replaces the stored
 * one, and a call that would add two is `KV_ERR_UNSUPPORTED`; so is, in a job of several workers with
 * rounds, every push of such a key.
 *
 * @param keys      `count` keys, each initialised before.
 * @param values    `count` tensors of their keys' shapes. Lent until the operation completes.
 *                  Never written, kept or freed.
 * @param count     number of pairs; with 0 nothing happens.
 * @param priority  larger runs earlier among the operations that wait; only with a ticket.
 * @param ticket    receives a ticket for kv_wait(); NULL waits here, up to the option
 *                  `timeout_ms`.
 * @return `KV_ERR_KEY_NOT_FOUND`, `KV_ERR_SHAPE_MISMATCH`, `KV_ERR_DTYPE_MISMATCH`,
 *         `KV_ERR_INVALID_ARGUMENT`, `KV_ERR_UNSUPPORTED`, `KV_ERR_OPTION` (a number of values of
 *         one worker that `sum_order=tree` does not take): nothing has been applied.
 *         `KV_ERR_CALLBACK`: keys before the one in the message are applied, it and those after
 *         it are not. `KV_ERR_TIMEOUT`: in a store of one process nothing has been applied, if the
 *         message says so; otherwise keys before the one in the message are applied, it and those
 *         after it are not. In a job the push goes on and takes effect, once: do not repeat it.
 *
 * Threads: any. Calls of one thread on one key take effect in call order. Blocks: only if
 * `ticket` is NULL. Complexity: one pass over each value.
 */
kv_status kv_push(struct kv_store *store,
                  const kv_key *keys,
                  const struct kv_tensor *values,
                  size_t count,
                  int32_t priority,
                  kv_ticket *ticket);

/**
 * Copies the stored values out. Sees every push that this thread made before.
 *
 * One tensor may be the out of several keys: the last key in processing order wins, never a mix.
 *
 * @param keys      `count` keys, each initialised before; equal keys fill several outs.
 * @param outs      `count` tensors of their keys' shapes, of the same or another float dtype
 *                  (converted in one rounding). Lent, and written, until the operation completes.
 * @param count     number of pairs; with 0 nothing happens.
 * @param priority  as for kv_push().
 * @param ticket    as for kv_push().
 * @return `KV_ERR_KEY_NOT_FOUND`, `KV_ERR_SHAPE_MISMATCH`, `KV_ERR_DTYPE_MISMATCH`,
 *         `KV_ERR_OVERLAP` (outs that overlap in part, or have a stride of 0): nothing has been
 *         written. Outs that interleave, and are not pieces at one distance as the columns of a
 *         matrix are, are compared row by row, up to 65,536 rows a call: an overlap that takes
 *         more to find is not seen, and gives a mix. `KV_ERR_TIMEOUT`: outs may be undefined.
 *
 * Threads: any. Blocks: only if `ticket` is NULL.
 */
kv_status kv_pull(struct kv_store *store,
                  const kv_key *keys,
                  const struct kv_tensor *outs,
                  size_t count,
                  int32_t priority,
                  kv_ticket *ticket);

/**
 * Pushes, then pulls, in one operation and with less traffic than the two calls.
 *
 * Each key's outs are filled right after its push. An out may be exactly a value of the same key
 * (same address, dtype and strides): the result then replaces it.
 *
 * @param keys       as for kv_push().
 * @param values     as for kv_push().
 * @param count      number of (key, value) pairs.
 * @param out_keys   as the keys of kv_pull(); they need not be those pushed.
 * @param outs       as for kv_pull().
 * @param out_count  number of (key, out) pairs.
 * @param priority   as for kv_push().
 * @param ticket     as for kv_push().
 * @return as kv_push() and kv_pull(). All pairs are checked before any is applied.
 *
 * Threads: any. Blocks: only if `ticket` is NULL.
 */
kv_status kv_pushpull(struct kv_store *store,
                      const kv_key *keys,
                      const struct kv_tensor *values,
                      size_t count,
                      const kv_key *out_keys,
                      const struct kv_tensor *outs,
                      size_t out_count,
                      int32_t priority,
                      kv_ticket *ticket);

/**
 * Initialises, then pulls: kv_init() of the values and kv_pull() into the outs.
 *
 * The values are copied before the call returns, also with a ticket; the outs are lent until
 * completion.
 *
 * @param keys       as for kv_init().
 * @param values     as for kv_init().
 * @param count      number of (key, value) pairs.
 * @param out_keys   keys to pull; they may have been initialised earlier.
 * @param outs       as for kv_pull().
 * @param out_count  number of (key, out) pairs.
 * @param priority   as for kv_push().
 * @param ticket     as for kv_push().
 * @return as kv_init() and kv_pull(). All pairs are checked before any is applied.
 *
 * Threads: any. Blocks: only if `ticket` is NULL.
 */
kv_status kv_broadcast(struct kv_store *store,
                       const kv_key *keys,
                       const struct kv_tensor *values,
                       size_t count,
                       const kv_key *out_keys,
                       const struct kv_tensor *outs,
                       size_t out_count,
                       int32_t priority,
                       kv_ticket *ticket);

/**
 * Removes keys and frees their values; a removed key may be initialised again, with any shape.
 *
 * Operations with a ticket that are pending on these keys, of any thread, finish first. A
 * call of another thread that meets a removed key fails with `KV_ERR_KEY_NOT_FOUND`.
 *
 * @param keys   `count` different keys, each initialised before.
 * @param count  number of keys; with 0 nothing happens.
 * @return `KV_ERR_KEY_NOT_FOUND` (also for a key that stands twice in the list),
 *         `KV_ERR_TIMEOUT` (operations on them still at work): nothing has been removed. In a
 *         job `KV_ERR_TIMEOUT` takes back the removal of the keys that other workers have not
 *         removed; the message names the first key that is kept.
 *
 * Threads: any. Blocks: up to the option `timeout_ms`.
 */
kv_status kv_remove(struct kv_store *store, const kv_key *keys, size_t count);

/**
 * Waits for an operation, and gives its result. May be called again, and from any thread.
 *
 * @param ticket      a ticket of this store.
 * @param timeout_ms  how long to wait, -1 for ever, 0 not at all.
 * @return the operation's own error; `KV_ERR_TIMEOUT`: not known yet, the operation goes on and
 *         its buffers stay lent (do not repeat a push because of it); `KV_ERR_CANCELLED`;
 *         `KV_ERR_TICKET` for a ticket of another store, one never issued, and one older than
 *         the last 65,536 operations that did not succeed (the last 1,024 keep their text).
 *
 * Threads: any. Blocks: up to `timeout_ms`.
 */
kv_status kv_wait(struct kv_store *store, kv_ticket ticket, int64_t timeout_ms);

/**
 * Waits for every operation that was pending when the call was made.
 *
 * @param timeout_ms  how long to wait, -1 for ever, 0 not at all.
 * @return the first failure, by ticket, that no call has reported; the message counts the
 *         others, and all of them count as told. `KV_ERR_TIMEOUT`: operations go on.
 *
 * Threads: any. Blocks: up to `timeout_ms`.
 */
kv_status kv_wait_all(struct kv_store *store, int64_t timeout_ms);

/**
 * Ends an operation's loan: once this returns `KV_OK`, its buffers are yours again.
 *
 * An operation that has not begun is withdrawn. One at work stops after the key it is at (a push)
 * or within one piece of 256 KiB (a pull, whose outs are then undefined). One that has completed
 * stays as it is. kv_wait() on the ticket then gives `KV_ERR_CANCELLED`, or `KV_OK` if the
 * operation had taken effect in full.
 *
 * @param ticket  a ticket of this store.
 * @return `KV_ERR_TICKET`; `KV_ERR_TIMEOUT` after `timeout_ms` of the store's options (an updater
 *         that does not return): the buffers stay lent.
 *
 * Threads: any. Blocks: as long as the operation is at work on one key.
 */
kv_status kv_cancel(struct kv_store *store, kv_ticket ticket);

/**
 * Checks keys with their values and outs once, for calls that repeat: each later kv_bound_push(),
 * kv_bound_pull() or kv_bound_pushpull() of a local store costs little beside the bytes.
 *
 * The bits are those of kv_push(), kv_pull() and kv_pushpull() with the same lists, and so is the
 * order of calls. In a job and with arrays on GPUs, these are the calls that are made.
 *
 * A key that has been removed is an error of the next call that uses it, and so is one that has been
 * initialised again with a dtype or a shape that does not fit; nothing has changed then.
 *
 * @param keys       `count` keys, each initialised before; repeat a key for several values. Copied.
 * @param values     `count` tensors as for kv_push(). Shapes and strides are copied; the memory of the
 *                   elements is lent until kv_bound_free(): write to it between calls, and neither
 *                   free nor move it.
 * @param count      number of (key, value) pairs; with 0 the list is for pulls only.
 * @param out_keys   as the keys of kv_pull(); they need not be those of the values. Copied.
 * @param outs       `out_count` tensors as for kv_pull(), lent like the values: read them between
 *                   calls. An out may be exactly a value of the same key.
 * @param out_count  number of (key, out) pairs; with 0 the list is for pushes only.
 * @param bound      receives the handle; free it with kv_bound_free().
 * @return as kv_pushpull() with these lists.
 *
 * Threads: any.
 */
kv_status kv_bind(struct kv_store *store,
                  const kv_key *keys,
                  const struct kv_tensor *values,
                  size_t count,
                  const kv_key *out_keys,
                  const struct kv_tensor *outs,
                  size_t out_count,
                  struct kv_bound **bound);

/**
 * Makes kv_push() of the bound values.
 *
 * @param bound     of kv_bind(), with values.
 * @param priority  as for kv_push().
 * @param ticket    receives a ticket for kv_wait(); NULL waits here. A call with a ticket is checked
 *                  and planned like kv_push(). Its tensors are lent until it completes, also after
 *                  kv_bound_free().
 * @return as kv_push(): a call that is refused has applied nothing. `KV_ERR_CLOSED` also after
 *         kv_free(). `KV_ERR_TIMEOUT` also if another thread's call with this handle goes on.
 *
 * Threads: any; calls with one handle are made one after the other. Blocks: only if `ticket` is NULL.
 */
kv_status kv_bound_push(struct kv_bound *bound,
                        int32_t priority,
                        kv_ticket *ticket);

/**
 * Makes kv_pull() into the bound outs.
 *
 * @param bound     of kv_bind(), with outs.
 * @param priority  as for kv_push().
 * @param ticket    as for kv_bound_push().
 * @return as kv_pull() and kv_bound_push().
 *
 * Threads: as kv_bound_push(). Blocks: only if `ticket` is NULL.
 */
kv_status kv_bound_pull(struct kv_bound *bound, int32_t priority, kv_ticket *ticket);

/**
 * Makes kv_pushpull() of the bound values into the bound outs.
 *
 * @param bound     of kv_bind(), with values and outs.
 * @param priority  as for kv_push().
 * @param ticket    as for kv_bound_push().
 * @return as kv_pushpull() and kv_bound_push().
 *
 * Threads: as kv_bound_push(). Blocks: only if `ticket` is NULL.
 */
kv_status kv_bound_pushpull(struct kv_bound *bound, int32_t priority, kv_ticket *ticket);

/**
 * Frees the handle, and ends the loan of the tensors but for operations with a ticket. NULL does
 * nothing.
 *
 * Before or after kv_free(); as long as the handle is there, so are the values of its keys.
 *
 * Threads: no other call with this handle may be running. From inside an updater of the store it does
 * nothing but leave `KV_ERR_REENTRANT`'s text in kv_last_error().
 */
void kv_bound_free(struct kv_bound *bound);

/**
 * Reduces values of all workers, and gives the result to all.
 *
 * Of a local store, and of each worker, the values given are reduced first, left to right, and rounded
 * once to the dtype; then those of the workers, in the order of ranks, or by the tree of the option
 * `sum_order`, and rounded once. f16 and bf16 are added in f32; integers wrap.
 *
 * COLLECTIVE CALLS, this one and those below, need no key and leave nothing behind, in this process or in
 * another one. Workers exchange the values directly. All workers make the same calls in the same order,
 * with the same dtype, reduction, root and lengths, one thread at a time. The first one of a store waits
 * until all workers have made one, also if it has a ticket. kv_done() and rounds do not concern them, and
 * a reader makes none. Tensors are in host memory.
 *
 * @param reduction  one of `kv_reduction`. `KV_MEAN` is the sum of floats, divided once by the number of
 *                   values of all workers, which give equally many; its rounding is that of the sum.
 * @param values     `count` tensors of one shape and dtype, at least one. Lent until the operation
 *                   completes.
 * @param count      number of values.
 * @param outs       `out_count` tensors of the same shape and dtype, which receive the result. An out may
 *                   be exactly a value (same address, shape, no strides) and overlaps nothing else. Lent.
 * @param out_count  number of outs; 0 if this worker needs no result.
 * @param ticket     receives a ticket for kv_wait(); NULL waits here, up to the option `timeout_ms`. With a
 *                   ticket too the exchange fails `timeout_ms` after this call.
 * @return `KV_ERR_SHAPE_MISMATCH`, `KV_ERR_DTYPE_MISMATCH`, `KV_ERR_OVERLAP`, `KV_ERR_INVALID_ARGUMENT`,
 *         `KV_ERR_UNSUPPORTED` (opaque dtypes, the mean of integers, CUDA memory, a worker with a token of
 *         its rank alone, a process of an earlier release), `KV_ERR_OPTION` (a number of values that
 *         `sum_order=tree` does not take): nothing was sent.
 *         `KV_ERR_DIFFERS` if another worker makes another call, `KV_ERR_TIMEOUT` (with a ticket
 *         `KV_ERR_EXPIRED`), which names the workers that have not made the call, `KV_ERR_PEER_LOST`: outs
 *         are undefined. The call then fails for all workers for which it has not ended, and counts as made.
 *
 * Threads: any, one at a time. Blocks: if `ticket` is NULL; and the first collective call of the store.
 * Complexity: each worker sends and receives about twice the bytes of the value, whatever their number.
 */
kv_status kv_allreduce(struct kv_store *store,
                       int32_t reduction,
                       const struct kv_tensor *values,
                       size_t count,
                       const struct kv_tensor *outs,
                       size_t out_count,
                       kv_ticket *ticket);

/**
 * Reduces values of all workers, and gives the result to one of them.
 *
 * The bits are those of kv_allreduce().
 *
 * @param reduction  as for kv_allreduce().
 * @param root       rank of the worker that gets the result.
 * @param values     as for kv_allreduce().
 * @param count      number of values.
 * @param outs       as for kv_allreduce(); not used on other workers than the root.
 * @param out_count  number of outs.
 * @param ticket     as for kv_allreduce().
 * @return as kv_allreduce().
 *
 * Threads: any, one at a time. Blocks: as kv_allreduce().
 */
kv_status kv_reduce(struct kv_store *store,
                    int32_t reduction,
                    int32_t root,
                    const struct kv_tensor *values,
                    size_t count,
                    const struct kv_tensor *outs,
                    size_t out_count,
                    kv_ticket *ticket);

/**
 * Reduces the values that all workers give for a worker, and gives the result to that worker.
 *
 * Worker r gets the reduction, in the order of ranks, of the value r of every worker. Values for different
 * workers may have different shapes.
 *
 * @param reduction  as for kv_allreduce().
 * @param values     `count` tensors of one dtype, one for each worker, in the order of ranks. Lent until
 *                   the operation completes.
 * @param count      number of workers.
 * @param out        receives the result; of the shape and dtype of this worker's own value, which it may be
 *                   exactly. Lent.
 * @param ticket     as for kv_allreduce().
 * @return as kv_allreduce(); `KV_ERR_INVALID_ARGUMENT` for another number of values;
 *         `KV_ERR_DIFFERS` also if another worker's value for this one has another length.
 *
 * Threads: any, one at a time. Blocks: as kv_allreduce().
 */
kv_status kv_reduce_scatter(struct kv_store *store,
                            int32_t reduction,
                            const struct kv_tensor *values,
                            size_t count,
                            const struct kv_tensor *out,
                            kv_ticket *ticket);

/**
 * Gives the value of one worker to all.
 *
 * @param root     rank of the worker that has the value.
 * @param tensors  `count` tensors of one shape and dtype, at least one. On the root the first one is the
 *                 value, which is copied to the others; on other workers all receive it. Lent until the
 *                 operation completes.
 * @param count    number of tensors.
 * @param ticket   as for kv_allreduce().
 * @return as kv_allreduce(); any dtype is taken.
 *
 * Threads: any, one at a time. Blocks: as kv_allreduce().
 */
kv_status kv_broadcast_from(struct kv_store *store,
                            int32_t root,
                            const struct kv_tensor *tensors,
                            size_t count,
                            kv_ticket *ticket);

/**
 * Gives the values of all workers to all.
 *
 * @param value      this worker's value. Lent until the operation completes.
 * @param outs       `out_count` tensors, one for each worker in the order of ranks: each receives that
 *                   worker's value and has its number of elements. The out of this worker may be exactly
 *                   the value. All of one dtype. Lent.
 * @param out_count  number of workers.
 * @param ticket     as for kv_allreduce().
 * @return as kv_allreduce(); any dtype is taken. `KV_ERR_INVALID_ARGUMENT` for another number of outs;
 *         `KV_ERR_DIFFERS` also if the value of a worker has another length than its out here.
 *
 * Threads: any, one at a time. Blocks: as kv_allreduce().
 */
kv_status kv_allgather(struct kv_store *store,
                       const struct kv_tensor *value,
                       const struct kv_tensor *outs,
                       size_t out_count,
                       kv_ticket *ticket);

/**
 * Gives the values of all workers to one of them.
 *
 * @param root       rank of the worker that gets them.
 * @param value      as for kv_allgather().
 * @param outs       as for kv_allgather(); not used on other workers than the root.
 * @param out_count  number of workers, on the root.
 * @param ticket     as for kv_allreduce().
 * @return as kv_allgather().
 *
 * Threads: any, one at a time. Blocks: as kv_allreduce().
 */
kv_status kv_gather(struct kv_store *store,
                    int32_t root,
                    const struct kv_tensor *value,
                    const struct kv_tensor *outs,
                    size_t out_count,
                    kv_ticket *ticket);

/**
 * Gives each worker one of the values of one worker.
 *
 * @param root    rank of the worker that has the values.
 * @param values  on the root `count` tensors, one for each worker in the order of ranks; not used on other
 *                workers. Lent until the operation completes.
 * @param count   number of workers, on the root.
 * @param out     receives this worker's value, of its number of elements; on the root it may be exactly that
 *                value. All of one dtype. Lent.
 * @param ticket  as for kv_allreduce().
 * @return as kv_allgather().
 *
 * Threads: any, one at a time. Blocks: as kv_allreduce().
 */
kv_status kv_scatter(struct kv_store *store,
                     int32_t root,
                     const struct kv_tensor *values,
                     size_t count,
                     const struct kv_tensor *out,
                     kv_ticket *ticket);

/**
 * Gives each worker one value of every worker.
 *
 * Worker r receives the value r of worker s in its out s.
 *
 * @param values     `count` tensors, one for each worker in the order of ranks. Lent until the operation
 *                   completes.
 * @param count      number of workers.
 * @param outs       `out_count` tensors, one for each worker in the order of ranks, of the number of elements
 *                   that it sends. The out of this worker may be exactly its value for itself. All of one
 *                   dtype. Lent.
 * @param out_count  number of workers.
 * @param ticket     as for kv_allreduce().
 * @return as kv_allgather().
 *
 * Threads: any, one at a time. Blocks: as kv_allreduce().
 */
kv_status kv_all_to_all(struct kv_store *store,
                        const struct kv_tensor *values,
                        size_t count,
                        const struct kv_tensor *outs,
                        size_t out_count,
                        kv_ticket *ticket);

/**
 * Has a function called when an operation has ended, whether well or not; no thread waits for it.
 *
 * It is called exactly once, unless this call fails, and then `drop`. If the operation has ended
 * already, that happens at once, on the calling thread; inside another callback of the store, after
 * that one has returned. Otherwise a thread of the store calls the functions of all its operations,
 * one after the other, as the operations end: a function that takes long delays the others. Its
 * status is what kv_wait() gives, counts as told, and its text is in kv_last_error() inside the
 * function. The operation's buffers are yours again.
 *
 * Every operation ends: also by kv_cancel(), kv_abort() (`KV_ERR_CLOSED`), kv_free(), and when the
 * store is poisoned. kv_close() and kv_free() return after the last function has returned, or after
 * their time. After a fork() only the parent's functions are called.
 *
 * @param ticket    a ticket of this store; several functions may be given for one.
 * @param callback  the function.
 * @param context   passed to `callback` as it is.
 * @param drop      called once with `context` after `callback`, on the same thread, and when this
 *                  call fails; may be NULL.
 * @return `KV_ERR_TICKET` as for kv_wait(), `KV_ERR_OUT_OF_MEMORY` (no thread can be started).
 *
 * Threads: any, also inside such a function.
 */
kv_status kv_on_done(struct kv_store *store,
                     kv_ticket ticket,
                     kv_done_callback callback,
                     void *context,
                     kv_drop drop);

/**
 * Has an operation given by kv_next_done() when it has ended, whether well or not.
 *
 * Each call makes it be given once. Nothing of the store is kept for an operation that is not
 * watched; take what you watch.
 *
 * @param ticket  a ticket of this store.
 * @return `KV_ERR_TICKET` as for kv_wait().
 *
 * Threads: any, also inside a function of kv_on_done().
 */
kv_status kv_watch(struct kv_store *store, kv_ticket ticket);

/**
 * Takes a watched operation that has ended, in the order of the ends; never waits.
 *
 * @param ticket  receives the ticket, 0 if there is none.
 * @param status  receives what kv_wait() gives for it; it counts as told, and an error's text is in
 *                kv_last_error(). `KV_OK` if there is none.
 *
 * Threads: any, also inside a function of kv_on_done().
 */
kv_status kv_next_done(struct kv_store *store, kv_ticket *ticket, kv_status *status);

/**
 * Gives a descriptor that is readable while kv_next_done() has an operation to give.
 *
 * For poll(), epoll and event loops. There is one for each store, made by the first call. Only wait
 * for it: do not read from it, write to it or close it; kv_free() closes it. It is closed by exec;
 * the child of a fork() must leave it alone.
 *
 * @param fd  receives the descriptor.
 * @return `KV_ERR_OUT_OF_MEMORY` (too many files are open).
 *
 * Threads: any, also inside a function of kv_on_done().
 */
kv_status kv_event_fd(struct kv_store *store, int32_t *fd);

/**
 * Merges values into some rows of each key. A row is what one index of the first axis selects.
 *
 * Row `row_ids[i]` of the key gets row `i` of the value. What is pushed to one row is added up: all
 * values of a key left to right in call order, each from its first row to its last, rounded once as
 * in kv_push(). Without updater and optimizer, the sums replace exactly these rows. An updater gets
 * the sum as a dense array with zeros in all other rows, and so does an optimizer, unless its
 * option `lazy_update` is true: it then changes the pushed rows, and their state, only. (`sgd`
 * without momentum and weight decay, and `adagrad` and `groupadagrad` without weight decay, change
 * no other row anyway, and look at none.)
 *
 * @param keys      `count` keys, each initialised before.
 * @param row_ids   `count` tensors of int64, of any shape, each number from 0 to below the key's
 *                  first extent, in any order, also repeated. Copied.
 * @param rows      `count` tensors; their shape is that of the row ids, followed by that of a row.
 *                  Lent until the operation completes. Never written, kept or freed.
 * @param count     number of pairs; with 0 nothing happens.
 * @param priority  as for kv_push().
 * @param ticket    as for kv_push().
 * @return as kv_push(); `KV_ERR_INVALID_ARGUMENT` for a row id out of range,
 *         `KV_ERR_DTYPE_MISMATCH` for row ids that are not int64, `KV_ERR_SHAPE_MISMATCH` for a key
 *         without rows: nothing has been applied.
 *
 * Threads: any. Blocks: only if `ticket` is NULL. Complexity: one pass over the pushed rows, and
 * one over the key where it says dense above.
 */
kv_status kv_push_rows(struct kv_store *store,
                       const kv_key *keys,
                       const struct kv_tensor *row_ids,
                       const struct kv_tensor *rows,
                       size_t count,
                       int32_t priority,
                       kv_ticket *ticket);

/**
 * Copies rows of the stored values out. Sees every push that this thread made before.
 *
 * Row `i` of the out gets row `row_ids[i]` of the key.
 *
 * @param keys      `count` keys, each initialised before; equal keys fill several outs.
 * @param row_ids   as for kv_push_rows().
 * @param outs      `count` tensors of the key's or another float dtype; their shape is that of the
 *                  row ids, followed by that of a row. Lent, and written, until the operation
 *                  completes.
 * @param count     number of pairs; with 0 nothing happens.
 * @param priority  as for kv_push().
 * @param ticket    as for kv_push().
 * @return as kv_pull() and, for row ids, as kv_push_rows(): nothing has been written.
 *
 * Threads: any. Blocks: only if `ticket` is NULL. Complexity: one pass over the pulled rows.
 */
kv_status kv_pull_rows(struct kv_store *store,
                       const kv_key *keys,
                       const struct kv_tensor *row_ids,
                       const struct kv_tensor *outs,
                       size_t count,
                       int32_t priority,
                       kv_ticket *ticket);

/**
 * Names the stream on which this thread's calls use the memory of a CUDA device, from now on.
 *
 * A call of this thread begins after everything that has been queued on this stream, and what is
 * queued there after the call has returned begins after it. Without it that is the legacy default
 * stream. Work on other streams is not waited for. The stream must not be destroyed while it is
 * named.
 *
 * @param device  of the type `KV_CUDA`.
 * @param stream  a `CUstream` or `cudaStream_t` of the device's primary context; NULL or 1 is the
 *                legacy default stream, 2 the default stream of this thread.
 * @return `KV_ERR_INVALID_ARGUMENT` if the device or the stream is another; `KV_ERR_DEVICE`
 *         without a driver that can be used; `KV_ERR_UNSUPPORTED` in a build without CUDA.
 *
 * Threads: any; each has streams of its own.
 */
kv_status kv_set_stream(struct kv_device device, void *stream);

/**
 * Gives the stream on which this thread's calls use the memory of a CUDA device.
 *
 * @param device  of the type `KV_CUDA`.
 * @param stream  receives what kv_set_stream() named, or NULL.
 * @return as kv_set_stream().
 *
 * Threads: any.
 */
kv_status kv_stream(struct kv_device device, void **stream);

/**
 * Gives the device on which the value of a key is.
 *
 * In a `device` store that is the CUDA device of the tensor that initialised the key, or to which
 * it moved at its first call with a CUDA tensor; everywhere else it is host memory.
 *
 * @param device  receives the device: `KV_CUDA` and its number, or `KV_CPU` and 0.
 * @return `KV_ERR_KEY_NOT_FOUND`.
 *
 * Threads: any.
 */
kv_status kv_key_device(struct kv_store *store, kv_key key, struct kv_device *device);

/**
 * Sets the function that merges sums into stored values, for all pushes after this call.
 *
 * Within a call it runs for one key after the other, on the calling thread; with a ticket, on a
 * thread of the library. Across calls it may run concurrently for different keys, never for one
 * key. If it fails, keys before it stay applied, it and those after are not; what it half-changed
 * stays, unless the option `updater_undo` is `yes`.
 *
 * @param updater  the function, or NULL to assign again, as in the beginning.
 * @param context  passed to `updater` as it is.
 * @param drop     called once with `context` when no push can use it any more (at the latest in
 *                 kv_free()), also when this call fails; may be NULL.
 * @return `KV_ERR_CLOSED` and the other states of a store that refuses work.
 *
 * Threads: any.
 */
kv_status kv_set_updater(struct kv_store *store, kv_updater updater, void *context, kv_drop drop);

/**
 * Merges sums into stored values by a rule of the library, for all pushes after this call.
 *
 * An updater set before is dropped, and an optimizer set before with its state. The state of a
 * key is made by its first push. Rules calculate in f32 (f64 for f64 keys) and round once.
 *
 * @param name    the rule, in any case; docs/use/optimizers.md lists the rules and their options.
 * @param params  options as `name=value,...`, e.g. `"learning_rate=0.1,momentum=0.9"`; NULL or
 *                empty for the defaults. Copied.
 * @return `KV_ERR_OPTION` for an unknown name or a value that does not fit (the message lists near
 *         names), `KV_ERR_DTYPE_MISMATCH` if a key holds integers or opaque values; nothing
 *         has changed then. While an optimizer is set, kv_init() refuses such keys with
 *         `KV_ERR_DTYPE_MISMATCH`.
 *
 * Threads: any.
 */
kv_status kv_set_optimizer(struct kv_store *store, const char *name, const char *params);

/**
 * Merges single keys by a rule of their own, for all pushes after this call: a store can hold weights
 * under one rule, embeddings under another, and counters under none.
 *
 * The keys need not be there yet, and keep the rule when they are removed. What kv_set_updater() and
 * kv_set_optimizer() set holds for all other keys. The state that a key has under its present rule
 * ends. kv_set_hyperparameter() changes the rule of the store, kv_set_key_hyperparameter() that of a
 * key.
 *
 * @param keys    `count` keys; a name's key must have been interned in this store. Copied.
 * @param count   number of keys; with 0 nothing happens.
 * @param name    as for kv_set_optimizer(); or `none`: pushes replace the stored value; or `store`:
 *                the keys merge as all others again.
 * @param params  options as `name=value,...`; NULL or empty for the defaults, and with `none` and
 *                `store`. Copied.
 * @return `KV_ERR_OPTION` for an unknown name or a value that does not fit (the message lists near
 *         names), `KV_ERR_DTYPE_MISMATCH` if one of the keys holds elements that the rule cannot
 *         change; nothing has changed then. In a job all workers make the call, with equal
 *         arguments: `KV_ERR_DIFFERS` otherwise.
 *
 * Threads: any. Blocks: in a job up to the option `timeout_ms`.
 */
kv_status kv_set_optimizer_for(struct kv_store *store,
                               const kv_key *keys,
                               size_t count,
                               const char *name,
                               const char *params);

/**
 * Changes an option of the optimizer, for all pushes after this call. Its state stays.
 *
 * @param name   the option, e.g. `learning_rate`.
 * @param value  its value; 1 and 0 stand for true and false.
 * @return `KV_ERR_OPTION` for an unknown name or a value that does not fit,
 *         `KV_ERR_INVALID_ARGUMENT` if no optimizer is set; nothing has changed then.
 *
 * Threads: any.
 */
kv_status kv_set_hyperparameter(struct kv_store *store, const char *name, double value);

/**
 * Changes what an option of the optimizer is multiplied by for one key, for all pushes after this
 * call. The key need not be there yet.
 *
 * @param key    the key.
 * @param name   `lr_mult` for the learning rate, `wd_mult` for the weight decay; for a key with a
 *               rule of its own also an option of that rule, such as `learning_rate`.
 * @param value  the factor, from 0; or the value of the option.
 * @return as kv_set_hyperparameter().
 *
 * Threads: any.
 */
kv_status kv_set_key_hyperparameter(struct kv_store *store,
                                    kv_key key,
                                    const char *name,
                                    double value);

/**
 * Gives each push after this call a weight, such as the number of samples in its batch, for means over
 * batches of unequal sizes. The sum of a round is divided by the sum of its weights, once, before a rule or
 * an updater gets it. So push sums over samples, not means.
 *
 * The weight belongs to the push of a key with all its values in the call, and to this worker alone: other
 * workers set theirs. In one round all pushes have a weight, or none has; else it is not merged, and pulls
 * of it are `KV_ERR_DIFFERS`. A worker without samples pushes zeros with weight 0; a round whose weights are all
 * 0 is not merged, and pulls of it are `KV_ERR_INVALID_ARGUMENT`. kv_clear_weight() ends it.
 *
 * While it is set, pushes to keys of integers are `KV_ERR_DTYPE_MISMATCH`, and with tensors or keys in GPU
 * memory `KV_ERR_UNSUPPORTED`; where a push is a round by itself (local stores, `dist_async`), one with weight 0 is
 * `KV_ERR_INVALID_ARGUMENT`. Nothing is pushed then.
 *
 * @param weight  0, or from 2^-100 to 2^100.
 * @return `KV_ERR_INVALID_ARGUMENT` for another number, `KV_ERR_UNSUPPORTED` in a job with a server of an
 *         earlier release; nothing has changed then.
 *
 * Threads: any; it holds for the pushes of all threads.
 */
kv_status kv_set_weight(struct kv_store *store,
                        double weight);

/**
 * Ends kv_set_weight(): the sums of later pushes are not divided.
 *
 * Threads: any.
 */
kv_status kv_clear_weight(struct kv_store *store);

/**
 * Clips the gradients of each push or pushpull after this call by their global norm.
 *
 * A gradient is the sum of a key's values as its rule gets it, times the rule's `rescale_grad`, or the sum as an
 * updater gets it. The norm is the square root of the sum of the squares of all gradients of one call. If it is
 * above max_norm, each gradient is multiplied by max_norm / (norm + 1e-6) before its rule or updater uses it, as
 * by clip_grad_norm_ of PyTorch; `clip_gradient` and weight decay come after. So push all gradients of a model
 * by one call. Keys whose pushes replace the value are neither counted nor scaled, nor are keys of integers.
 *
 * A norm that is not finite skips the push: no key of the call changes, its outs get the values as they are, and
 * the call is KV_OK; kv_last_norm() counts it. With `KV_CLIP_FAIL` the call is `KV_ERR_INVALID_ARGUMENT` instead
 * and names the first key, in processing order, with which the norm is not finite.
 *
 * The squares are added in f64, in an order that docs/use/semantics.md gives: neither threads nor the order of the list
 * change a bit of the norm. Pushes queued before this call keep the setting of the time of their call. The
 * setting is in no checkpoint. While it is on, kv_push_rows() to a key with a gradient is `KV_ERR_UNSUPPORTED`, as
 * are gradients or such keys in GPU memory.
 *
 * In a job all workers make this call alike, and the gradients are the sums of a round: each push of a key with a
 * gradient waits for the other workers, which push the same keys, and counts as a collective call. All skip or
 * none does. What then differs is in docs/use/semantics.md, "Clipping in a job".
 *
 * @param max_norm  above 0; infinite to measure, and skip, without clipping; 0 ends clipping.
 * @param flags     0, or `KV_CLIP_FAIL`.
 * @return `KV_ERR_INVALID_ARGUMENT` for a negative number, a NaN or another flag; `KV_ERR_UNSUPPORTED` while a
 *         codec is set (kv_set_compression() is refused likewise); in a job also without rounds, with
 *         `sum_order=tree`, while pushes have a weight, and for pushes with a ticket. Nothing has changed then.
 *         In a job `KV_ERR_DIFFERS` if another worker sets another norm, which is in force then; `KV_ERR_TIMEOUT`.
 *
 * Threads: any; it holds for the pushes of all threads.
 */
kv_status kv_set_clipping(struct kv_store *store,
                          double max_norm,
                          uint32_t flags);

/**
 * Gives the norm of the last push that was measured, see kv_set_clipping(), and how many were skipped.
 *
 * It is that before clipping, also of a push that was skipped or has failed: infinite or a NaN then. Waits for
 * nothing: a push with a ticket counts when it has completed.
 *
 * @param norm   receives the norm, a NaN before the first push that was measured.
 * @param skips  receives the number of pushes that were skipped since kv_create().
 * @return `KV_ERR_ROLE` on a server and the scheduler.
 *
 * Threads: any. Both numbers are of one moment.
 */
kv_status kv_last_norm(struct kv_store *store,
                       double *norm,
                       uint64_t *skips);

/**
 * Begins a transaction: kv_rollback() takes back what pushes after this call change, until kv_commit() keeps it.
 *
 * It has the pushes of all threads, with tickets or without, whose calls come after this one. Other calls see
 * what they change at once. The first push of a key in it copies the value and the state of its rule; that memory
 * is as large as they are, and is used by later transactions too, until the key is removed.
 *
 * While kv_set_clipping() is on, no push in a transaction is scaled or skipped: the transaction has one norm, of
 * the gradients of all its pushes, added as one push of all of them adds them, and kv_commit() looks at it. So a
 * program pushes each gradient as soon as it is there, and pushes them again where their norm turns out to be too
 * large (also called: speculation). A key that is pushed twice has two gradients.
 *
 * In a transaction the calls that change how pushes merge are `KV_ERR_INVALID_ARGUMENT`: those that set updaters,
 * optimizers, codecs and clipping, and kv_load(); hyperparameters may change. Pushes from or to GPU memory are
 * `KV_ERR_UNSUPPORTED`. A digest log has the pushes, also those that are taken back.
 *
 * @return `KV_ERR_INVALID_ARGUMENT` if a transaction has begun; `KV_ERR_UNSUPPORTED` in a job, and while a codec
 *         is set.
 *
 * Threads: any.
 */
kv_status kv_begin(struct kv_store *store);

/**
 * Ends the transaction: keeps its pushes, or takes them back as kv_rollback() does if the norm of their gradients is
 * above that of kv_set_clipping(), or not finite. kv_last_norm() gives it.
 *
 * Waits, at most `timeout_ms`, for pushes of the transaction that are on their way.
 *
 * @param outcome  receives `KV_COMMIT_KEPT`, `KV_COMMIT_EXCEEDED` or `KV_COMMIT_SKIPPED`.
 * @return `KV_ERR_INVALID_ARGUMENT` without a transaction; also, with `KV_CLIP_FAIL`, for a norm that is not finite:
 *         the pushes are taken back then. `KV_ERR_TIMEOUT` if a push has not ended: the transaction goes on.
 *         `KV_ERR_UNSUPPORTED` in a job.
 *
 * Threads: any.
 */
kv_status kv_commit(struct kv_store *store,
                    int32_t *outcome);

/**
 * Ends the transaction: the values of all keys that were pushed in it, the states of their rules and their counts
 * are what they were before, to the bit. Keys that were initialised or removed stay so. What an updater keeps
 * beside the values stays as well.
 *
 * Waits as kv_commit() does.
 *
 * @return as kv_commit().
 *
 * Threads: any.
 */
kv_status kv_rollback(struct kv_store *store);

/**
 * Sends each value of every push after this call through a codec, as workers would: what is added
 * up is what the codec's bytes decode to. Pulls, kv_init() and kv_broadcast() are not compressed,
 * nor are keys of integers.
 *
 * What a push could not send is kept for each key and place among its values, and added to the
 * value that the key's next push has there; see docs/use/compression.md. It goes with the key, and
 * with the codec: a call that succeeds starts anew.
 *
 * @param name    the codec, in any case: `1bit`, `2bit`, `fp16`, `bf16`, `int8`, `topk`,
 *                `randomk`, or `none`.
 * @param params  options as `name=value,...`, e.g. `"threshold=0.5"`; NULL or empty for the
 *                defaults. Copied.
 * @return `KV_ERR_OPTION` for an unknown name or a value that does not fit (the message lists near
 *         names), `KV_ERR_DTYPE_MISMATCH` if a key holds floats that the codec does not take: all
 *         take f32, `fp16` and `bf16` also f64; nothing has changed then. While a codec is set,
 *         kv_init() refuses such keys with `KV_ERR_DTYPE_MISMATCH`. `KV_ERR_UNSUPPORTED` in a
 *         store with `sum_order=tree`.
 *
 * Threads: any.
 */
kv_status kv_set_compression(struct kv_store *store, const char *name, const char *params);

/**
 * Writes the keys, their values, the optimizer with its options and state, and the codec with what
 * it has left unsent, to a file.
 *
 * The file is one of safetensors, see docs/use/checkpoints.md. It takes the place of the one at `path`
 * as a whole: whenever the process or the machine stops, the old or the new one is there. What
 * this thread started before is waited for. Each key is as it was between two pushes; all are of
 * one moment if no other thread pushes meanwhile. An updater of yours is not saved, its values
 * are.
 *
 * In a job it is a call of all workers, and the lowest rank that is neither lost nor done writes the
 * file. After kv_done(), and after the loss of a worker under `on_worker_loss=fail`, it is a call of
 * one, which writes what the servers have: see docs/use/distributed.md.
 *
 * @param path  NUL-terminated, as the system takes it, not necessarily UTF-8. A symbolic link is
 *              replaced, not followed.
 * @return `KV_ERR_IO` (the message has the system's reason), `KV_ERR_TIMEOUT` if a key stays in
 *         use; the old file is as it was.
 *
 * Threads: any. Blocks: until the file is on the disk.
 */
kv_status kv_save(struct kv_store *store,
                  const char *path);

/**
 * Takes over what a file of kv_save() has.
 *
 * Everything is read and checked first, then takes effect as one. Keys that are there get the
 * values of the file, others are added, names after those that are there; keys that the file does
 * not have stay as they are. The optimizer of the file takes the place of what is set, with its
 * options and state: training goes on as if it had not stopped. Without one, what is set stays,
 * and the loaded keys start anew under it.
 *
 * A file of safetensors that another program has written has values only, under names: floats become
 * those of the keys that are there, what is set stays, and the loaded keys start anew under it. A
 * path that ends with `.json` is the index of such files, as Hugging Face writes it.
 *
 * @param path  as for kv_save(); a symbolic link is followed.
 * @return `KV_ERR_IO`; `KV_ERR_CORRUPT` for a file that is cut off or altered (the message says
 *         where); `KV_ERR_UNSUPPORTED` for one of a later version, or with a dtype that no key can
 *         have;
 *         `KV_ERR_SHAPE_MISMATCH`, `KV_ERR_DTYPE_MISMATCH` if a key of the store is another one,
 *         or cannot have the optimizer; `KV_ERR_NAME_COLLISION`, `KV_ERR_OUT_OF_MEMORY`,
 *         `KV_ERR_TIMEOUT`. The store is as it was.
 *
 * Threads: any. Blocks: until the file has been read, and for pending operations on its keys.
 */
kv_status kv_load(struct kv_store *store,
                  const char *path);

/**
 * Takes over the values of a file that another program has written, or of all files of an index, for the keys
 * that a function names: kv_load() with a mapping of keys.
 *
 * The function is called once for each tensor, on this thread, before anything changes. In a job it is a
 * call of all workers, as kv_load() is, and the function of one is asked, of the lowest rank that is
 * neither lost nor done.
 *
 * @param path     as for kv_load().
 * @param namer    gives a tensor the name of its key, or leaves it out.
 * @param context  passed to `namer` as it is.
 * @return as kv_load(), and `KV_ERR_CALLBACK` with the text of kv_set_callback_error();
 *         `KV_ERR_INVALID_ARGUMENT` if two tensors get one name, or a name is empty;
 *         `KV_ERR_UNSUPPORTED` for a file of kv_save(). The store is as it was.
 *
 * Threads: any. Blocks: as kv_load().
 */
kv_status kv_load_values(struct kv_store *store,
                         const char *path,
                         kv_key_namer namer,
                         void *context);

/**
 * Gives the text of this thread's last failed call: key, shapes, peer, and what to do.
 *
 * Never NULL; empty if no call has failed on this thread. Valid until the next call of this
 * library on this thread.
 *
 * Threads: any; each has its own text.
 */
const char *kv_last_error(void);

/**
 * Says why an updater fails: call it inside the updater, before returning an error status.
 *
 * The text becomes part of the message that the failing push, or kv_load_values(), leaves in
 * kv_last_error().
 *
 * @param message  NUL-terminated text, copied; invalid UTF-8 is replaced. NULL removes the text.
 *
 * Threads: the one that the updater runs on; elsewhere it has no effect.
 */
void kv_set_callback_error(const char *message);

/**
 * Gives the name of a status, such as `KV_ERR_TIMEOUT`; `unknown status` for any other number.
 *
 * @return a string that lives for ever, never NULL.
 *
 * Threads: any.
 */
const char *kv_status_name(kv_status status);

/**
 * Gives the version of the library, such as `0.1.0`.
 *
 * @return a string that lives for ever, never NULL.
 *
 * Threads: any.
 */
const char *kv_version(void);

/**
 * Whether this build of the library has a feature: 1 or 0, also 0 for a name that it does not know. The
 * names are `optimizer`, `updater`, `compression`, `rows`, `tickets`, `checkpoint`, `digests`,
 * `sum_order`, `weights`, `clipping`, `transactions`, `dist`, `tls`, `shm`, `ucx` and `cuda`. What a
 * machine has, such as a GPU, is not asked.
 *
 * @param feature  the name, in lower case.
 *
 * Threads: any.
 */
int kv_capable(const char *feature);

/**
 * Gives the version of the binary interface; compare it with `KV_ABI_VERSION`.
 *
 * Threads: any.
 */
uint32_t kv_abi_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

/**
 * Views row-major CPU memory as a tensor.
 *
 * @param data   the elements.
 * @param dtype  their type, such as KV_F32.
 * @param ndim   number of dimensions.
 * @param shape  `ndim` extents; must live as long as the tensor is used.
 */
static inline kv_tensor kv_tensor_cpu(void *data, kv_dtype dtype, int32_t ndim, int64_t *shape) {
    kv_tensor tensor;
    tensor.data = data;
    tensor.device.type = KV_CPU;
    tensor.device.id = 0;
    tensor.ndim = ndim;
    tensor.dtype = dtype;
    tensor.shape = shape;
    tensor.strides = NULL;
    tensor.byte_offset = 0;
    return tensor;
}

#endif /* KVSTORE_H */
