/*
 * The floating-point state of the host - rounding mode, flush to zero, unmasked exceptions - does
 * not change a bit of the results, and is left as it was.
 *
 * Threads inherit the state of the one that starts them, and the library starts its own once in a
 * process: so each state has a process of its own, that sends its results through a pipe.
 */
#include "numbers.h"
#include "support.h"

#include <fenv.h>
#include <sys/types.h>
#include <sys/wait.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
/* Bits of the control register MXCSR (Intel SDM, volume 1, 10.2.3). */
enum { FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x40, ALL_MASKS = 0x1f80, FLAGS = 0x3f };
#endif

enum { SMALL = 5003, LARGE = 300007, MOST_VALUES = 5 };

static uint64_t data[FLOAT_DTYPE_COUNT][MOST_VALUES][LARGE], got[LARGE];
static int64_t sizes[] = {SMALL, LARGE};
static int pipe_in;

/* Rounding direction and control bits as one number. */
static unsigned control_state(void) {
    unsigned state = (unsigned)fegetround();
#if defined(__x86_64__)
    state ^= _mm_getcsr() & ~(unsigned)FLAGS;
#endif
    return state;
}

/* Runs a call, which must succeed and leave the state alone. */
#define CHECK_CALL(call)                        \
    do {                                        \
        unsigned before = control_state();      \
        CHECK_STATUS(call, KV_OK);              \
        CHECK(control_state() == before);       \
    } while (0)

/* NaNs are sent as one NaN: which one comes out is not promised. */
static void send_elements(kv_dtype dtype, size_t count) {
    size_t size = dtype_size(dtype), sent = 0;
    for (size_t i = 0; i < count; i++) {
        if (bits_are_nan(dtype, load_bits(dtype, (char *)got + i * size))) {
            save_bits(dtype, (char *)got + i * size, infinity_bits(dtype) | 1);
        }
    }
    while (sent < count * size) {
        ssize_t part = write(pipe_in, (char *)got + sent, count * size - sent);
        CHECK(part > 0);
        sent += (size_t)part;
    }
}

/* Sums and conversions of one dtype, with and without a ticket. */
static void work_on(kv_store *store, int d, int64_t *size) {
    kv_dtype dtype = FLOAT_DTYPES[d];
    kv_key key = (kv_key)d, keys[] = {key, key, key, key, key};
    kv_tensor values[MOST_VALUES], out = kv_tensor_cpu(got, dtype, 1, size);
    kv_ticket ticket = 0;
    for (int i = 0; i < MOST_VALUES; i++) {
        values[i] = kv_tensor_cpu(data[d][i], dtype, 1, size);
    }
    CHECK_CALL(kv_init(store, keys, values, 1));
    CHECK_CALL(kv_push(store, keys, values, MOST_VALUES, 0, NULL));
    for (int to = 0; to < FLOAT_DTYPE_COUNT; to++) {
        out.dtype = FLOAT_DTYPES[to];
        CHECK_CALL(kv_pull(store, keys, &out, 1, 0, NULL));
        send_elements(out.dtype, (size_t)*size);
    }
    out.dtype = dtype;
    for (int from = 0; from < FLOAT_DTYPE_COUNT; from++) {
        kv_tensor other = kv_tensor_cpu(data[from][1], FLOAT_DTYPES[from], 1, size);
        CHECK_CALL(kv_pushpull(store, keys, &other, 1, keys, &out, 1, 0, NULL));
        send_elements(dtype, (size_t)*size);
    }
    CHECK_CALL(kv_push(store, keys, values, 3, 0, NULL));
    CHECK_CALL(kv_push(store, keys, values, 4, 0, &ticket));
    CHECK_CALL(kv_pull(store, keys, &out, 1, 0, &ticket));
    CHECK_CALL(kv_wait(store, ticket, WAIT_MS));
    send_elements(dtype, (size_t)*size);
    CHECK_CALL(kv_remove(store, keys, 1));
}

/* The updater is the user's and runs in the user's state, so it only copies. */
static kv_status keep_input(void *context, kv_key key, const kv_tensor *input,
                            const kv_tensor *stored) {
    (void)context;
    (void)key;
    memcpy(stored->data, input->data, (size_t)stored->shape[0] * dtype_size(stored->dtype));
    return KV_OK;
}

/* Codecs, which round and divide, with and without an updater. */
static void work_on_codecs(kv_store *store, int64_t *size) {
    static const char *const codecs[] = {"1bit", "2bit", "fp16", "bf16", "int8", "topk", "randomk"};
    enum { F32 = 2 };
    kv_key keys[] = {9, 9};
    kv_tensor values[2], out = kv_tensor_cpu(got, KV_F32, 1, size);
    for (int i = 0; i < 2; i++) {
        values[i] = kv_tensor_cpu(data[F32][i], KV_F32, 1, size);
    }
    CHECK_CALL(kv_init(store, keys, values, 1));
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        CHECK_CALL(kv_set_compression(store, codecs[i], NULL));
        for (int push = 0; push < 4; push++) {
            CHECK_CALL(kv_set_updater(store, push % 2 ? keep_input : NULL, NULL, NULL));
            CHECK_CALL(kv_pushpull(store, keys, values, 2, keys, &out, 1, 0, NULL));
            send_elements(KV_F32, (size_t)*size);
        }
    }
    CHECK_CALL(kv_set_compression(store, "none", NULL));
    CHECK_CALL(kv_set_updater(store, NULL, NULL, NULL));
    CHECK_CALL(kv_remove(store, keys, 1));
}

static void work_on_everything(void) {
    kv_store *store = open_with("threads", "4");
    for (int s = 0; s < (int)scaled(2, 1); s++) {
        for (int d = 0; d < FLOAT_DTYPE_COUNT; d++) {
            work_on(store, d, &sizes[s]);
        }
        work_on_codecs(store, &sizes[s]);
    }
    CHECK_CALL(kv_close(store, WAIT_MS));
    kv_free(store);
}

/* Sums that need rounding, and, every other element, numbers below the normal ones. */
static void make_data(void) {
    uint64_t random = 31;
    for (int d = 0; d < FLOAT_DTYPE_COUNT; d++) {
        kv_dtype dtype = FLOAT_DTYPES[d];
        size_t size = dtype_size(dtype);
        uint64_t below = ((uint64_t)1 << dtype_fraction(dtype)) - 1;
        for (int i = 0; i < MOST_VALUES; i++) {
            fill_random(dtype, data[d][i], LARGE, &random);
            for (size_t j = 0; j < LARGE; j += 2) {
                save_bits(dtype, (char *)data[d][i] + j * size,
                          next_random(&random) & (below | sign_bit(dtype)));
            }
        }
    }
}

typedef void (*set_state)(void);

static void set_nothing(void) {
}

static void set_upward(void) {
    CHECK(fesetround(FE_UPWARD) == 0);
}

static void set_downward(void) {
    CHECK(fesetround(FE_DOWNWARD) == 0);
}

static void set_toward_zero(void) {
    CHECK(fesetround(FE_TOWARDZERO) == 0);
}

#if defined(__x86_64__)
static void set_flush_to_zero(void) {
    _mm_setcsr(_mm_getcsr() | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
}

static void set_flush_to_zero_upward(void) {
    set_flush_to_zero();
    set_upward();
}

/* An invalid operation or an overflow of ours would be a signal. */
static void set_all_exceptions_unmasked(void) {
    _mm_setcsr(_mm_getcsr() & ~(unsigned)(ALL_MASKS | FLAGS));
}
#endif

/* Runs the work in a child with this state; gives the file that its results come from. */
static int start(set_state set, pid_t *child) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    fflush(NULL);
    *child = fork();
    CHECK(*child >= 0);
    if (*child == 0) {
        alarm_after_minutes(5);
        close(ends[0]);
        pipe_in = ends[1];
        set();
        work_on_everything();
        _exit(0);
    }
    close(ends[1]);
    return ends[0];
}

static size_t read_fully(int from, unsigned char *to, size_t room) {
    size_t length = 0;
    ssize_t part;
    while (length < room && (part = read(from, to + length, room - length)) > 0) {
        length += (size_t)part;
    }
    return length;
}

static void results_equal_those_of_the_default_state(set_state set) {
    static unsigned char wanted[1 << 16], found[1 << 16];
    pid_t children[2];
    int files[] = {start(set_nothing, &children[0]), start(set, &children[1])};
    size_t length = 0, total = 0;
    do {
        length = read_fully(files[0], wanted, sizeof wanted);
        CHECK(read_fully(files[1], found, sizeof found) == length);
        CHECK(memcmp(found, wanted, length) == 0);
        total += length;
    } while (length > 0);
    /* 4 outs, 4 conversions and one ticket for each dtype: 9 times and 16 bytes, or their like. */
    CHECK(total >= SMALL * 9 * 16);
    for (int i = 0; i < 2; i++) {
        int status = -1;
        CHECK(waitpid(children[i], &status, 0) == children[i]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        close(files[i]);
    }
}

int main(void) {
    alarm_after_minutes(10);
    make_data();
    results_equal_those_of_the_default_state(set_upward);
    results_equal_those_of_the_default_state(set_downward);
    results_equal_those_of_the_default_state(set_toward_zero);
#if defined(__x86_64__)
    results_equal_those_of_the_default_state(set_flush_to_zero);
    results_equal_those_of_the_default_state(set_flush_to_zero_upward);
    results_equal_those_of_the_default_state(set_all_exceptions_unmasked);
#endif
    return check_passed("api_fpstate");
}
