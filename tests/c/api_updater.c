/* Updaters: what they see, what happens when they fail, and when their context ends. */
#include "numbers.h"
#include "support.h"

typedef struct call {
    kv_key key;
    const int64_t *stored;
    pthread_t thread;
} call;

/* The calls that an updater has seen, in their order. */
typedef struct record {
    call calls[16];
    int count;
} record;

static kv_status record_and_add(void *context, kv_key key, const kv_tensor *input,
                                const kv_tensor *stored) {
    record *seen = context;
    call *now = &seen->calls[seen->count++];
    *now = (call){key, number_of(stored), pthread_self()};
    return add_number(NULL, key, input, stored);
}

/* Once per key, integers ascending, then names in order of init; on the calling thread. */
static void keys_come_in_processing_order(const char *type) {
    kv_store *store = open_store(type);
    record seen = {.count = 0};
    int64_t numbers[] = {1, 2, 3, 4, 5, 6};
    kv_key b = 0, a = 0;
    kv_tensor values[6];
    CHECK_STATUS(kv_intern(store, "a", &a), KV_OK);
    CHECK_STATUS(kv_intern(store, "b", &b), KV_OK);
    kv_key keys[] = {9, a, 5, b, 7, 5}, wanted[] = {5, 7, 9, b, a};
    for (int i = 0; i < 6; i++) {
        values[i] = number_tensor(&numbers[i]);
    }
    for (int i = 0; i < 5; i++) {
        init_number(store, wanted[i], 10);
    }
    CHECK_STATUS(kv_set_updater(store, record_and_add, &seen, NULL), KV_OK);
    CHECK_STATUS(kv_push(store, keys, values, 6, 0, NULL), KV_OK);
    CHECK(seen.count == 5);
    for (int i = 0; i < 5; i++) {
        CHECK(seen.calls[i].key == wanted[i]);
        CHECK(pthread_equal(seen.calls[i].thread, pthread_self()));
    }
    CHECK(pull_number(store, 5) == 19);
    CHECK(pull_number(store, a) == 12);
    kv_free(store);
}

static void with_a_ticket_it_runs_on_another_thread(const char *type) {
    kv_store *store = open_store(type);
    record seen = {.count = 0};
    int64_t number = 1;
    init_number(store, 1, 10);
    CHECK_STATUS(kv_set_updater(store, record_and_add, &seen, NULL), KV_OK);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    CHECK(seen.count == 1);
    CHECK(!pthread_equal(seen.calls[0].thread, pthread_self()));
    kv_free(store);
}

/* What the next updater must find in its tensors. */
typedef struct expectation {
    kv_dtype dtype;
    int calls;
    uint64_t input[64], stored[64], result[64]; /* room for elements of any dtype */
} expectation;

enum { ROWS = 3, COLUMNS = 5, ELEMENTS = ROWS * COLUMNS };

static void check_view(const kv_tensor *tensor, kv_dtype dtype) {
    CHECK(tensor->device.type == KV_CPU);
    CHECK(tensor->ndim == 2 && tensor->shape[0] == ROWS && tensor->shape[1] == COLUMNS);
    CHECK(tensor->dtype == dtype);
    CHECK(tensor->strides == NULL);
    CHECK(tensor->data != NULL);
}

static kv_status compare_and_replace(void *context, kv_key key, const kv_tensor *input,
                                     const kv_tensor *stored) {
    expectation *wanted = context;
    size_t bytes = ELEMENTS * dtype_size(wanted->dtype);
    (void)key;
    check_view(input, wanted->dtype);
    check_view(stored, wanted->dtype);
    CHECK(same_elements(wanted->dtype, number_of(input), wanted->input, ELEMENTS));
    CHECK(memcmp(number_of(stored), wanted->stored, bytes) == 0);
    memcpy(number_of(stored), wanted->result, bytes);
    wanted->calls++;
    return KV_OK;
}

/*
 * Input and stored value have the key's dtype and shape and are row-major, whatever was pushed:
 * several values, one strided value, one of another float type.
 */
static void tensors_are_the_keys_and_row_major(const char *type) {
    static uint64_t data[2][ELEMENTS], back[ELEMENTS];
    int64_t shape[] = {ROWS, COLUMNS}, columns[] = {1, ROWS};
    kv_store *store = open_store(type);
    uint64_t random = 17;
    expectation wanted = {.calls = 0};
    CHECK_STATUS(kv_set_updater(store, compare_and_replace, &wanted, NULL), KV_OK);
    for (kv_key key = 0; key < DTYPE_COUNT; key++) {
        kv_dtype dtype = DTYPES[key];
        size_t size = dtype_size(dtype);
        kv_key keys[] = {key, key};
        void *rows[] = {data[0], data[1]};
        kv_tensor values[] = {kv_tensor_cpu(data[0], dtype, 2, shape),
                              kv_tensor_cpu(data[1], dtype, 2, shape)};
        kv_tensor out = kv_tensor_cpu(back, dtype, 2, shape);
        wanted.dtype = dtype;
        fill_random(dtype, data[0], ELEMENTS, &random);
        fill_random(dtype, data[1], ELEMENTS, &random);
        fill_random(dtype, wanted.stored, ELEMENTS, &random);
        kv_tensor first = kv_tensor_cpu(wanted.stored, dtype, 2, shape);
        CHECK_STATUS(kv_init(store, keys, &first, 1), KV_OK);

        for (size_t i = 0; i < ELEMENTS; i++) {
            save_bits(dtype, (char *)wanted.input + i * size, sum_elements(dtype, rows, 2, i));
        }
        fill_random(dtype, wanted.result, ELEMENTS, &random);
        CHECK_STATUS(kv_push(store, keys, values, 2, 0, NULL), KV_OK);
        memcpy(wanted.stored, wanted.result, sizeof wanted.result);

        values[0].strides = columns;
        gather(dtype, wanted.input, data[0], 2, shape, columns);
        CHECK_STATUS(kv_push(store, keys, values, 1, 0, NULL), KV_OK);
        CHECK_STATUS(kv_pull(store, keys, &out, 1, 0, NULL), KV_OK);
        CHECK(memcmp(back, wanted.result, ELEMENTS * size) == 0);
    }
    CHECK(wanted.calls == 2 * DTYPE_COUNT);
    kv_free(store);
}

static void a_value_of_another_float_type_is_converted_first(const char *type) {
    kv_store *store = open_store(type);
    float data[ELEMENTS];
    int64_t shape[] = {ROWS, COLUMNS};
    kv_key key = 1;
    uint64_t random = 19;
    expectation wanted = {.dtype = KV_BF16};
    fill_random(KV_F32, data, ELEMENTS, &random);
    kv_tensor first = kv_tensor_cpu(wanted.stored, KV_BF16, 2, shape);
    kv_tensor value = kv_tensor_cpu(data, KV_F32, 2, shape);
    CHECK_STATUS(kv_init(store, &key, &first, 1), KV_OK);
    CHECK_STATUS(kv_set_updater(store, compare_and_replace, &wanted, NULL), KV_OK);
    for (size_t i = 0; i < ELEMENTS; i++) {
        save_bits(KV_BF16, (char *)wanted.input + 2 * i,
                  convert_bits(KV_F32, load_bits(KV_F32, &data[i]), KV_BF16));
    }
    CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL), KV_OK);
    CHECK(wanted.calls == 1);
    kv_free(store);
}

/* One plain value may reach the updater as it is; it is never changed, and never the stored one. */
static void the_input_never_aliases_the_stored_value(const char *type) {
    kv_store *store = open_store(type);
    record seen = {.count = 0};
    int64_t number = 5;
    init_number(store, 1, 10);
    CHECK_STATUS(kv_set_updater(store, record_and_add, &seen, NULL), KV_OK);
    for (int64_t i = 1; i <= 3; i++) {
        kv_tensor value = number_tensor(&number);
        kv_key key = 1;
        CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL), KV_OK);
        CHECK(number == 5);
        CHECK(pull_number(store, 1) == 10 + 5 * i);
        CHECK(seen.calls[i - 1].stored != &number);
    }
    kv_free(store);
}

/* An additive updater after an assigning push of a list: 2 + 20, not 20 + 20. */
static void a_list_that_was_assigned_is_not_lent_again(const char *type) {
    kv_store *store = open_store(type);
    int64_t ones[] = {1, 1}, tens[] = {10, 10};
    kv_key keys[] = {1, 1};
    kv_tensor small[] = {number_tensor(&ones[0]), number_tensor(&ones[1])};
    kv_tensor large[] = {number_tensor(&tens[0]), number_tensor(&tens[1])};
    init_number(store, 1, 0);
    CHECK_STATUS(kv_push(store, keys, small, 2, 0, NULL), KV_OK);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    CHECK_STATUS(kv_push(store, keys, large, 2, 0, NULL), KV_OK);
    CHECK(pull_number(store, 1) == 22);
    CHECK_STATUS(kv_set_updater(store, NULL, NULL, NULL), KV_OK);
    CHECK_STATUS(kv_push(store, keys, small, 2, 0, NULL), KV_OK);
    CHECK(pull_number(store, 1) == 2);
    kv_free(store);
}

static kv_status count_empty(void *context, kv_key key, const kv_tensor *input,
                             const kv_tensor *stored) {
    (void)key;
    CHECK(input->ndim == 2 && input->shape[0] == 0 && input->shape[1] == 3);
    CHECK(stored->ndim == 2 && stored->shape[0] == 0 && stored->shape[1] == 3);
    ++*(int *)context;
    return KV_OK;
}

static void values_without_elements_reach_the_updater(const char *type) {
    kv_store *store = open_store(type);
    int64_t shape[] = {0, 3};
    int calls = 0;
    kv_key keys[] = {1, 1};
    kv_tensor value = kv_tensor_cpu(NULL, KV_F32, 2, shape), values[] = {value, value};
    CHECK_STATUS(kv_init(store, keys, &value, 1), KV_OK);
    CHECK_STATUS(kv_set_updater(store, count_empty, &calls, NULL), KV_OK);
    CHECK_STATUS(kv_push(store, keys, values, 1, 0, NULL), KV_OK);
    CHECK_STATUS(kv_push(store, keys, values, 2, 0, NULL), KV_OK);
    CHECK(calls == 2);
    kv_free(store);
}

/* Spoils the stored value of key 2, gives a text, and fails with the status in the context. */
static kv_status spoil_key_two(void *context, kv_key key, const kv_tensor *input,
                               const kv_tensor *stored) {
    if (key != 2) {
        return add_number(NULL, key, input, stored);
    }
    *number_of(stored) = -1;
    kv_set_callback_error("learning rate is \"NaN\"");
    return *(kv_status *)context;
}

static void push_three(kv_store *store, kv_status wanted) {
    int64_t numbers[] = {1, 2, 3};
    kv_key keys[] = {3, 2, 1};
    kv_tensor values[3];
    for (int i = 0; i < 3; i++) {
        values[i] = number_tensor(&numbers[i]);
    }
    CHECK_STATUS(kv_push(store, keys, values, 3, 0, NULL), wanted);
}

/* Keys before the failing one are applied, it and those after are not; what it spoilt stays. */
static void a_failing_updater_stops_the_push(const char *type) {
    static const kv_status results[] = {KV_ERR_INVALID_ARGUMENT, KV_ERR_TIMEOUT, KV_ERR_CALLBACK,
                                        -1, 12345, INT32_MIN};
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) {
        kv_status result = results[i];
        kv_store *store = open_store(type);
        for (kv_key key = 1; key <= 3; key++) {
            init_number(store, key, 10);
        }
        CHECK_STATUS(kv_set_updater(store, spoil_key_two, &result, NULL), KV_OK);
        push_three(store, KV_ERR_CALLBACK);
        CHECK(error_says("key 2"));
        CHECK(error_says("learning rate is \"NaN\""));
        CHECK(pull_number(store, 1) == 13);
        CHECK(pull_number(store, 2) == -1);
        CHECK(pull_number(store, 3) == 10);
        result = KV_OK; /* and the store works on */
        push_three(store, KV_OK);
        CHECK(pull_number(store, 1) == 16);
        CHECK(pull_number(store, 3) == 11);
        kv_free(store);
    }
}

static void updater_undo_restores_the_stored_value(void) {
    kv_store *store = open_with("updater_undo", "yes");
    kv_status result = KV_ERR_UNSUPPORTED;
    for (kv_key key = 1; key <= 3; key++) {
        init_number(store, key, 10);
    }
    CHECK_STATUS(kv_set_updater(store, spoil_key_two, &result, NULL), KV_OK);
    for (int64_t i = 1; i <= 3; i++) {
        push_three(store, KV_ERR_CALLBACK);
        CHECK(pull_number(store, 1) == 10 + 3 * i);
        CHECK(pull_number(store, 2) == 10);
        CHECK(pull_number(store, 3) == 10);
    }
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    push_three(store, KV_OK); /* the copy for the undo is no part of a success */
    CHECK(pull_number(store, 2) == 12);
    kv_free(store);
}

static kv_status fail_silently(void *context, kv_key key, const kv_tensor *input,
                               const kv_tensor *stored) {
    (void)context;
    (void)key;
    (void)input;
    (void)stored;
    return KV_ERR_UNSUPPORTED;
}

/* A text belongs to the call it was given in; NULL removes it; bad UTF-8 is replaced. */
static kv_status fail_with_texts(void *context, kv_key key, const kv_tensor *input,
                                 const kv_tensor *stored) {
    (void)input;
    (void)stored;
    (void)context;
    kv_set_callback_error("first text");
    if (key == 1) {
        kv_set_callback_error("second \xff text");
    } else if (key == 2) {
        kv_set_callback_error(NULL);
    } else {
        return KV_OK;
    }
    return KV_ERR_UNSUPPORTED;
}

static void texts_of_updaters_do_not_linger(const char *type) {
    kv_store *store = open_store(type);
    for (kv_key key = 1; key <= 3; key++) {
        init_number(store, key, 0);
    }
    kv_set_callback_error("outside of any updater");
    CHECK_STATUS(kv_set_updater(store, fail_silently, NULL, NULL), KV_OK);
    CHECK_STATUS(push_number(store, 1, 1), KV_ERR_CALLBACK);
    CHECK(!error_says("outside"));
    CHECK_STATUS(kv_set_updater(store, fail_with_texts, NULL, NULL), KV_OK);
    CHECK_STATUS(push_number(store, 1, 1), KV_ERR_CALLBACK);
    CHECK(error_says("second \xef\xbf\xbd text"));
    CHECK(!error_says("first text"));
    CHECK_STATUS(push_number(store, 2, 1), KV_ERR_CALLBACK);
    CHECK(!error_says("text"));
    CHECK_STATUS(push_number(store, 3, 1), KV_OK);
    CHECK_STATUS(kv_set_updater(store, fail_silently, NULL, NULL), KV_OK);
    CHECK_STATUS(push_number(store, 3, 1), KV_ERR_CALLBACK);
    CHECK(!error_says("text"));
    kv_free(store);
}

static void contexts_end_exactly_once(const char *type) {
    atomic_int drops[6] = {0};
    kv_store *store = open_store(type);
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, add_number, &drops[0], count_drop), KV_OK);
    CHECK_STATUS(push_number(store, 1, 1), KV_OK);
    CHECK(atomic_load(&drops[0]) == 0);
    CHECK_STATUS(kv_set_updater(store, add_number, &drops[1], count_drop), KV_OK);
    CHECK(atomic_load(&drops[0]) == 1);
    CHECK_STATUS(kv_set_updater(store, NULL, NULL, NULL), KV_OK);
    CHECK(atomic_load(&drops[1]) == 1);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    CHECK_STATUS(kv_set_updater(NULL, add_number, &drops[2], count_drop),
                 KV_ERR_INVALID_ARGUMENT);
    CHECK(atomic_load(&drops[2]) == 1);
    CHECK_STATUS(kv_set_updater(store, NULL, &drops[3], count_drop), KV_OK);
    CHECK_STATUS(kv_set_updater(store, add_number, &drops[4], count_drop), KV_OK);
    kv_free(store);
    store = open_store(type);
    kv_abort(store);
    CHECK_STATUS(kv_set_updater(store, add_number, &drops[5], count_drop), KV_ERR_CLOSED);
    kv_free(store);
    for (int i = 0; i < 6; i++) {
        CHECK(atomic_load(&drops[i]) == 1);
    }
}

typedef struct gated {
    gate at;
    atomic_int calls, drops;
} gated;

static kv_status add_and_count_behind_gate(void *context, kv_key key, const kv_tensor *input,
                                           const kv_tensor *stored) {
    gated *own = context;
    atomic_fetch_add(&own->calls, 1);
    gate_pass(&own->at);
    return add_number(NULL, key, input, stored);
}

static void drop_gated(void *context) {
    atomic_fetch_add(&((gated *)context)->drops, 1);
}

/* Pushes keep the updater that was set when they were made; its context lives as long. */
static void queued_pushes_keep_their_updater(const char *type) {
    kv_store *store = open_store(type);
    gated old = {GATE_CLOSED, 0, 0}, new = {GATE_CLOSED, 0, 0};
    int64_t numbers[] = {1, 20, 300};
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, add_and_count_behind_gate, &old, drop_gated), KV_OK);
    send_number(store, 1, &numbers[0], 0);
    send_number(store, 1, &numbers[1], 0);
    gate_await(&old.at, 1);
    CHECK_STATUS(kv_set_updater(store, add_and_count_behind_gate, &new, drop_gated), KV_OK);
    send_number(store, 1, &numbers[2], 0);
    CHECK(atomic_load(&old.drops) == 0);
    gate_open(&new.at);
    gate_open(&old.at);
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    CHECK(atomic_load(&old.calls) == 2);
    CHECK(atomic_load(&new.calls) == 1);
    CHECK(atomic_load(&old.drops) == 1);
    CHECK(atomic_load(&new.drops) == 0);
    CHECK(pull_number(store, 1) == 321);
    kv_free(store);
    CHECK(atomic_load(&new.drops) == 1);
}

/* A cancelled push gives up its updater too. */
static void a_cancelled_push_lets_its_context_end(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    atomic_int drops = 0;
    int64_t number = 1;
    init_number(store, 1, 0);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    send_number(store, 1, &number, 0);
    gate_await(&at, 1);
    CHECK_STATUS(kv_set_updater(store, add_number, &drops, count_drop), KV_OK);
    kv_ticket ticket = send_number(store, 1, &number, 0);
    CHECK_STATUS(kv_set_updater(store, NULL, NULL, NULL), KV_OK);
    CHECK(atomic_load(&drops) == 0);
    CHECK_STATUS(kv_cancel(store, ticket), KV_OK);
    CHECK(atomic_load(&drops) == 1);
    gate_open(&at);
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    kv_free(store);
    CHECK(atomic_load(&drops) == 1);
}

int main(void) {
    alarm_after_minutes(5);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        keys_come_in_processing_order(STORE_TYPES[i]);
        with_a_ticket_it_runs_on_another_thread(STORE_TYPES[i]);
        tensors_are_the_keys_and_row_major(STORE_TYPES[i]);
        a_value_of_another_float_type_is_converted_first(STORE_TYPES[i]);
        the_input_never_aliases_the_stored_value(STORE_TYPES[i]);
        a_list_that_was_assigned_is_not_lent_again(STORE_TYPES[i]);
        values_without_elements_reach_the_updater(STORE_TYPES[i]);
        a_failing_updater_stops_the_push(STORE_TYPES[i]);
        texts_of_updaters_do_not_linger(STORE_TYPES[i]);
        contexts_end_exactly_once(STORE_TYPES[i]);
        queued_pushes_keep_their_updater(STORE_TYPES[i]);
        a_cancelled_push_lets_its_context_end(STORE_TYPES[i]);
    }
    updater_undo_restores_the_stored_value();
    return check_passed("api_updater");
}
