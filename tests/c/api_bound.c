/* kv_bind, kv_bound_push, kv_bound_pull, kv_bound_pushpull, kv_bound_free. */
#include "support.h"

enum { KEYS = 40, VALUES = 3, PAIRS = KEYS * VALUES, MOST = 70 };

/* Three values and outs for each of 40 keys, key by key, of 1 to 70 floats. */
typedef struct lists {
    kv_key keys[PAIRS];
    int64_t shapes[PAIRS][1];
    float values[PAIRS][MOST], outs[PAIRS][MOST];
    kv_tensor value_tensors[PAIRS], out_tensors[PAIRS];
} lists;

/* A number whose sums depend on their order. */
static float number_at(int pair, int at, int step) {
    const int64_t number = pair * 7919LL + at * 104729LL + step * 1299709LL;
    return (float)(number % 16777213) / 257.0f - 30000.0f;
}

static void fill(lists *of, int step) {
    for (int pair = 0; pair < PAIRS; pair++) {
        for (int at = 0; at < MOST; at++) {
            of->values[pair][at] = number_at(pair, at, step);
            of->outs[pair][at] = -1;
        }
    }
}

/* The keys stand in no order. */
static lists *new_lists(void) {
    lists *of = calloc(1, sizeof *of);
    CHECK(of != NULL);
    for (int pair = 0; pair < PAIRS; pair++) {
        int key = pair / VALUES * 17 % KEYS;
        of->keys[pair] = (kv_key)key;
        of->shapes[pair][0] = 1 + key * 13 % MOST;
        of->value_tensors[pair] = kv_tensor_cpu(of->values[pair], KV_F32, 1, of->shapes[pair]);
        of->out_tensors[pair] = kv_tensor_cpu(of->outs[pair], KV_F32, 1, of->shapes[pair]);
    }
    fill(of, 0);
    return of;
}

static void init_keys(kv_store *store, lists *of) {
    for (int pair = 0; pair < PAIRS; pair += VALUES) {
        CHECK_STATUS(kv_init(store, &of->keys[pair], &of->value_tensors[pair], 1), KV_OK);
    }
}

static kv_bound *bind_lists(kv_store *store, lists *of) {
    kv_bound *bound = NULL;
    CHECK_STATUS(kv_bind(store, of->keys, of->value_tensors, PAIRS, of->keys, of->out_tensors, PAIRS,
                         &bound),
                 KV_OK);
    CHECK(bound != NULL);
    return bound;
}

/* What a scalar loop finds: the sum of a key's values, left to right. */
static float sum_of(const lists *of, int pair, int at) {
    int first = pair / VALUES * VALUES;
    float sum = of->values[first][at];
    for (int i = 1; i < VALUES; i++) {
        sum += of->values[first + i][at];
    }
    return sum;
}

static int outs_are_sums(const lists *of) {
    for (int pair = 0; pair < PAIRS; pair++) {
        for (int at = 0; at < of->shapes[pair][0]; at++) {
            float sum = sum_of(of, pair, at);
            if (memcmp(&of->outs[pair][at], &sum, sizeof sum) != 0) {
                return 0;
            }
        }
    }
    return 1;
}

static int outs_are_untouched(const lists *of) {
    for (int pair = 0; pair < PAIRS; pair++) {
        for (int at = 0; at < MOST; at++) {
            if (of->outs[pair][at] != -1) {
                return 0;
            }
        }
    }
    return 1;
}

static void calls_give_the_bits_of_a_scalar_loop(const char *type) {
    kv_store *store = open_store(type);
    lists *of = new_lists();
    init_keys(store, of);
    kv_bound *bound = bind_lists(store, of);
    for (int step = 1; step < 5; step++) {
        fill(of, step);
        CHECK_STATUS(kv_bound_push(bound, 0, NULL), KV_OK);
        CHECK(outs_are_untouched(of));
        CHECK_STATUS(kv_bound_pull(bound, 0, NULL), KV_OK);
        CHECK(outs_are_sums(of));
        fill(of, -step);
        CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_OK);
        CHECK(outs_are_sums(of));
    }
    kv_bound_free(bound);
    kv_bound_free(NULL);
    kv_free(store);
    free(of);
}

/* Two stores make the same steps, by bound lists and by list calls, under rules that change. */
static void calls_give_the_bits_of_list_calls(const char *type) {
    static const char *const RULES[][2] = {{"sgd", "learning_rate=0.01,momentum=0.9"},
                                           {"adam", "learning_rate=0.01"},
                                           {"lamb", "learning_rate=0.01"}};
    kv_store *stores[] = {open_store(type), open_store(type)};
    lists *of[] = {new_lists(), new_lists()};
    init_keys(stores[0], of[0]);
    init_keys(stores[1], of[1]);
    kv_bound *bound = bind_lists(stores[0], of[0]);
    for (int step = 0; step < 12; step++) {
        if (step % 4 > 0) {
            const char *const *rule = RULES[step % 4 - 1];
            CHECK_STATUS(kv_set_optimizer(stores[0], rule[0], rule[1]), KV_OK);
            CHECK_STATUS(kv_set_optimizer(stores[1], rule[0], rule[1]), KV_OK);
        }
        fill(of[0], step);
        fill(of[1], step);
        CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_OK);
        CHECK_STATUS(kv_pushpull(stores[1], of[1]->keys, of[1]->value_tensors, PAIRS, of[1]->keys,
                                 of[1]->out_tensors, PAIRS, 0, NULL),
                     KV_OK);
        CHECK(memcmp(of[0]->outs, of[1]->outs, sizeof of[0]->outs) == 0);
    }
    kv_bound_free(bound);
    for (int i = 0; i < 2; i++) {
        kv_free(stores[i]);
        free(of[i]);
    }
}

static void pushes_have_the_weight_of_their_time(const char *type) {
    kv_store *store = open_store(type);
    float value[] = {8, 2}, out[2];
    int64_t shape[] = {2}, number = 3;
    kv_key key = 7, whole = 8;
    kv_tensor tensor = kv_tensor_cpu(value, KV_F32, 1, shape);
    kv_tensor to = kv_tensor_cpu(out, KV_F32, 1, shape);
    kv_tensor integer = number_tensor(&number);
    kv_bound *bound = NULL, *integers = NULL;
    CHECK_STATUS(kv_init(store, &key, &tensor, 1), KV_OK);
    init_number(store, whole, 1);
    CHECK_STATUS(kv_bind(store, &key, &tensor, 1, &key, &to, 1, &bound), KV_OK);
    CHECK_STATUS(kv_bind(store, &whole, &integer, 1, NULL, NULL, 0, &integers), KV_OK);
    CHECK_STATUS(kv_set_weight(store, 4), KV_OK);
    CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_OK);
    CHECK(out[0] == 2 && out[1] == 0.5f);
    CHECK_STATUS(kv_bound_push(integers, 0, NULL), KV_ERR_DTYPE_MISMATCH);
    CHECK_STATUS(kv_clear_weight(store), KV_OK);
    CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_OK);
    CHECK(out[0] == 8 && out[1] == 2);
    CHECK_STATUS(kv_bound_push(integers, 0, NULL), KV_OK);
    kv_bound_free(bound);
    kv_bound_free(integers);
    kv_free(store);
}

/* Keys, shapes and strides are copied; strides and other dtypes need a plan for each call. */
static void only_the_elements_are_lent(const char *type) {
    kv_store *store = open_store(type);
    float first[] = {1, 2, 3}, spread[] = {4, -1, 5, -1, 6};
    double wide[3] = {0};
    int64_t shape[] = {3}, other[] = {3}, strides[] = {2};
    kv_key key = 7;
    kv_tensor value = kv_tensor_cpu(first, KV_F32, 1, shape);
    kv_tensor out = kv_tensor_cpu(wide, KV_F64, 1, other);
    kv_bound *bound = NULL;
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    value.data = spread;
    value.strides = strides;
    CHECK_STATUS(kv_bind(store, &key, &value, 1, &key, &out, 1, &bound), KV_OK);
    key = 1000;
    shape[0] = other[0] = strides[0] = -5;
    memset(&value, 0, sizeof value);
    memset(&out, 0, sizeof out);
    CHECK_STATUS(kv_bound_pull(bound, 0, NULL), KV_OK);
    CHECK(wide[0] == 1 && wide[1] == 2 && wide[2] == 3);
    CHECK_STATUS(kv_bound_push(bound, 0, NULL), KV_OK);
    CHECK_STATUS(kv_bound_pull(bound, 0, NULL), KV_OK);
    CHECK(wide[0] == 4 && wide[1] == 5 && wide[2] == 6);
    spread[2] = 50;
    CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_OK);
    CHECK(wide[0] == 4 && wide[1] == 50 && wide[2] == 6);
    kv_bound_free(bound);
    kv_free(store);
}

/* Longer than what is merged without a plan, and split over threads. */
static void large_arrays(const char *type) {
    enum { LENGTH = 300000 };
    static float value[LENGTH], out[LENGTH];
    kv_store *store = open_store(type);
    int64_t shape[] = {LENGTH};
    kv_key key = 3;
    kv_bound *bound = NULL;
    kv_tensor tensors[] = {kv_tensor_cpu(value, KV_F32, 1, shape),
                           kv_tensor_cpu(out, KV_F32, 1, shape)};
    CHECK_STATUS(kv_init(store, &key, tensors, 1), KV_OK);
    CHECK_STATUS(kv_bind(store, &key, &tensors[0], 1, &key, &tensors[1], 1, &bound), KV_OK);
    for (int step = 1; step < 4; step++) {
        for (int i = 0; i < LENGTH; i++) {
            value[i] = number_at(1, i, step);
        }
        CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_OK);
        CHECK(memcmp(value, out, sizeof out) == 0);
    }
    kv_bound_free(bound);
    kv_free(store);
}

static void a_list_with_values_or_outs_only(const char *type) {
    kv_store *store = open_store(type);
    lists *of = new_lists();
    kv_bound *values = NULL, *outs = NULL, *none = NULL;
    init_keys(store, of);
    CHECK_STATUS(kv_bind(store, of->keys, of->value_tensors, PAIRS, NULL, NULL, 0, &values), KV_OK);
    CHECK_STATUS(kv_bind(store, NULL, NULL, 0, of->keys, of->out_tensors, PAIRS, &outs), KV_OK);
    CHECK_STATUS(kv_bound_pull(values, 0, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK(error_says("without outs"));
    CHECK_STATUS(kv_bound_pushpull(values, 0, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_bound_push(outs, 0, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK(error_says("without values"));
    CHECK_STATUS(kv_bound_pushpull(outs, 0, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_bound_push(values, 0, NULL), KV_OK);
    CHECK_STATUS(kv_bound_pull(outs, 0, NULL), KV_OK);
    CHECK(outs_are_sums(of));
    CHECK_STATUS(kv_bind(store, NULL, NULL, 0, NULL, NULL, 0, &none), KV_OK);
    CHECK_STATUS(kv_bound_push(none, 0, NULL), KV_OK);
    CHECK_STATUS(kv_bound_pull(none, 0, NULL), KV_OK);
    CHECK_STATUS(kv_bound_pushpull(none, 0, NULL), KV_OK);
    kv_bound_free(none);
    kv_bound_free(values);
    kv_bound_free(outs);
    kv_free(store);
    free(of);
}

/* Three values and one out for each key, and an out of a key that is not pushed. */
static void outs_have_keys_of_their_own(const char *type) {
    enum { OUTS = KEYS + 1 };
    kv_store *store = open_store(type);
    lists *of = new_lists();
    kv_key keys[OUTS];
    kv_tensor outs[OUTS];
    int64_t number = 77, got = 0;
    kv_bound *bound = NULL;
    init_keys(store, of);
    init_number(store, 9000, number);
    for (int i = 0; i < KEYS; i++) {
        int pair = (KEYS - 1 - i) * VALUES;
        keys[i] = of->keys[pair];
        outs[i] = of->out_tensors[pair];
    }
    keys[KEYS] = 9000;
    outs[KEYS] = number_tensor(&got);
    CHECK_STATUS(kv_bind(store, of->keys, of->value_tensors, PAIRS, keys, outs, OUTS, &bound),
                 KV_OK);
    for (int step = 1; step < 3; step++) {
        fill(of, step);
        CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_OK);
        CHECK(got == 77);
        for (int pair = 0; pair < PAIRS; pair++) {
            for (int at = 0; at < of->shapes[pair][0]; at++) {
                CHECK(of->outs[pair][at] == (pair % VALUES == 0 ? sum_of(of, pair, at) : -1));
            }
        }
    }
    kv_bound_free(bound);
    kv_free(store);
    free(of);
}

static void an_out_may_be_its_value(const char *type) {
    kv_store *store = open_store(type);
    lists *of = new_lists();
    kv_bound *bound = NULL;
    init_keys(store, of);
    CHECK_STATUS(kv_bind(store, of->keys, of->value_tensors, PAIRS, of->keys, of->value_tensors,
                         PAIRS, &bound),
                 KV_OK);
    lists *before = new_lists();
    CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_OK);
    memcpy(before->outs, of->values, sizeof before->outs);
    CHECK(outs_are_sums(before));
    kv_bound_free(bound);
    kv_free(store);
    free(of);
    free(before);
}

static void what_binding_refuses(const char *type) {
    kv_store *store = open_store(type);
    float data[8] = {0};
    int64_t two[] = {2}, three[] = {3};
    kv_key keys[] = {1, 2};
    kv_tensor good[] = {kv_tensor_cpu(data, KV_F32, 1, two), kv_tensor_cpu(data + 2, KV_F32, 1, two)};
    kv_tensor outs[] = {kv_tensor_cpu(data + 4, KV_F32, 1, two),
                        kv_tensor_cpu(data + 6, KV_F32, 1, two)};
    kv_tensor bad[] = {good[0], kv_tensor_cpu(data + 2, KV_F32, 1, three)};
    kv_bound *bound = NULL;
    CHECK_STATUS(kv_bind(store, keys, good, 2, NULL, NULL, 0, &bound), KV_ERR_KEY_NOT_FOUND);
    CHECK(error_says("bind: key 1"));
    CHECK_STATUS(kv_init(store, keys, good, 2), KV_OK);
    CHECK_STATUS(kv_bind(store, keys, bad, 2, NULL, NULL, 0, &bound), KV_ERR_SHAPE_MISMATCH);
    CHECK(error_says("bind: key 2"));
    bad[1] = kv_tensor_cpu(data + 2, KV_I32, 1, two);
    CHECK_STATUS(kv_bind(store, NULL, NULL, 0, keys, bad, 2, &bound), KV_ERR_DTYPE_MISMATCH);
    CHECK(error_says("key 2"));
    bad[1] = kv_tensor_cpu(data + 1, KV_F32, 1, two);
    CHECK_STATUS(kv_bind(store, keys, good, 2, keys, bad, 2, &bound), KV_ERR_OVERLAP);
    bad[1] = kv_tensor_cpu(NULL, KV_F32, 1, two);
    CHECK_STATUS(kv_bind(store, keys, bad, 2, keys, outs, 2, &bound), KV_ERR_INVALID_ARGUMENT);
    bad[1] = kv_tensor_cpu(data + 2, KV_F32, -1, two);
    CHECK_STATUS(kv_bind(store, keys, bad, 2, keys, outs, 2, &bound), KV_ERR_INVALID_ARGUMENT);
    bad[1] = kv_tensor_cpu(data + 2, KV_F32, 1, NULL);
    CHECK_STATUS(kv_bind(store, keys, bad, 2, keys, outs, 2, &bound), KV_ERR_INVALID_ARGUMENT);
    CHECK(bound == NULL);
    kv_free(store);
}

/* The values that are stored, without the keys from `removed` on. */
static int stored_is(kv_store *store, const lists *of, int removed, int step) {
    for (int pair = 0; pair < removed; pair += VALUES) {
        float got[MOST];
        int64_t shape[] = {of->shapes[pair][0]};
        kv_tensor out = kv_tensor_cpu(got, KV_F32, 1, shape);
        kv_key key = of->keys[pair];
        CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
        for (int at = 0; at < shape[0]; at++) {
            if (got[at] != number_at(pair, at, step)) {
                return 0;
            }
        }
    }
    return 1;
}

static void a_removed_key_is_an_error_that_changes_nothing(const char *type) {
    kv_store *store = open_store(type);
    lists *of = new_lists();
    init_keys(store, of);
    kv_bound *bound = bind_lists(store, of);
    kv_key last = of->keys[PAIRS - 1], unused = 5000;
    char name[32];
    init_number(store, unused, 1);
    fill(of, 9);
    CHECK_STATUS(kv_remove(store, &last, 1), KV_OK);
    snprintf(name, sizeof name, "key %d ", (int)last);
    CHECK_STATUS(kv_bound_push(bound, 0, NULL), KV_ERR_KEY_NOT_FOUND);
    CHECK(error_says("push: ") && error_says(name));
    CHECK_STATUS(kv_bound_pull(bound, 0, NULL), KV_ERR_KEY_NOT_FOUND);
    CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_ERR_KEY_NOT_FOUND);
    CHECK(outs_are_untouched(of));
    CHECK(stored_is(store, of, PAIRS - VALUES, 0));

    /* Another shape, and another dtype of the same size. */
    int64_t longer[] = {MOST + 1}, same[] = {of->shapes[PAIRS - 1][0]};
    float data[MOST + 1] = {0};
    kv_tensor value = kv_tensor_cpu(data, KV_F32, 1, longer);
    CHECK_STATUS(kv_init(store, &last, &value, 1), KV_OK);
    CHECK_STATUS(kv_bound_push(bound, 0, NULL), KV_ERR_SHAPE_MISMATCH);
    CHECK_STATUS(kv_bound_pull(bound, 0, NULL), KV_ERR_SHAPE_MISMATCH);
    CHECK_STATUS(kv_remove(store, &last, 1), KV_OK);
    value = kv_tensor_cpu(data, KV_I32, 1, same);
    CHECK_STATUS(kv_init(store, &last, &value, 1), KV_OK);
    CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_ERR_DTYPE_MISMATCH);
    CHECK(outs_are_untouched(of));
    CHECK(stored_is(store, of, PAIRS - VALUES, 0));

    /* As it was: the list is in use again. Other keys do not matter. */
    CHECK_STATUS(kv_remove(store, &last, 1), KV_OK);
    value = kv_tensor_cpu(data, KV_F32, 1, same);
    CHECK_STATUS(kv_init(store, &last, &value, 1), KV_OK);
    CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_OK);
    CHECK(outs_are_sums(of));
    fill(of, 10);
    CHECK_STATUS(kv_remove(store, &unused, 1), KV_OK);
    CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_OK);
    CHECK(outs_are_sums(of));
    kv_bound_free(bound);
    kv_free(store);
    free(of);
}

static void a_ticket_outlives_the_handle(const char *type) {
    kv_store *store = open_store(type);
    lists *of = new_lists();
    init_keys(store, of);
    kv_bound *bound = bind_lists(store, of);
    kv_ticket pushed = 0, pulled = 0;
    fill(of, 3);
    CHECK_STATUS(kv_bound_push(bound, 0, &pushed), KV_OK);
    CHECK_STATUS(kv_bound_pull(bound, 1, &pulled), KV_OK);
    kv_bound_free(bound);
    CHECK_STATUS(kv_wait(store, pulled, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_wait(store, pushed, WAIT_MS), KV_OK);
    CHECK(outs_are_sums(of));
    kv_free(store);
    free(of);
}

/* A call without a ticket comes after the pending ones of its keys. */
static void a_call_waits_for_pending_operations(const char *type) {
    kv_store *store = open_store(type);
    gate at = GATE_CLOSED;
    int64_t number = 5, got = 0;
    kv_key key = 1;
    kv_tensor value = number_tensor(&number), out = number_tensor(&got);
    kv_bound *bound = NULL;
    init_number(store, key, 10);
    CHECK_STATUS(kv_bind(store, &key, &value, 1, &key, &out, 1, &bound), KV_OK);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    kv_ticket pushed = send_number(store, key, &number, 0);
    gate_await(&at, 1);
    gate_open(&at);
    CHECK_STATUS(kv_bound_pushpull(bound, 0, NULL), KV_OK);
    CHECK(got == 20);
    CHECK_STATUS(kv_wait(store, pushed, WAIT_MS), KV_OK);
    kv_bound_free(bound);
    kv_free(store);
}

static void the_end_of_the_store(const char *type) {
    for (int way = 0; way < 3; way++) {
        kv_store *store = open_store(type);
        int64_t number = 5;
        kv_key key = 1;
        kv_tensor tensor = number_tensor(&number);
        kv_bound *bound = NULL, *other = NULL;
        kv_ticket ticket = UNTOUCHED;
        init_number(store, key, 10);
        CHECK_STATUS(kv_bind(store, &key, &tensor, 1, &key, &tensor, 1, &bound), KV_OK);
        if (way == 0) {
            CHECK_STATUS(kv_close(store, WAIT_MS), KV_OK);
        } else if (way == 1) {
            kv_abort(store);
        } else {
            kv_free(store);
        }
        CHECK_STATUS(kv_bound_push(bound, 0, NULL), KV_ERR_CLOSED);
        CHECK_STATUS(kv_bound_pull(bound, 0, NULL), KV_ERR_CLOSED);
        CHECK_STATUS(kv_bound_pushpull(bound, 0, &ticket), KV_ERR_CLOSED);
        CHECK(number == 5 && ticket == UNTOUCHED);
        if (way < 2) {
            CHECK_STATUS(kv_bind(store, &key, &tensor, 1, &key, &tensor, 1, &other), KV_ERR_CLOSED);
            kv_free(store);
        }
        CHECK_STATUS(kv_bound_push(bound, 0, NULL), KV_ERR_CLOSED);
        CHECK(other == NULL);
        kv_bound_free(bound);
    }
}

enum { THREADS = 4, STEPS = 500 };

static void *push_often(void *context) {
    for (int i = 0; i < STEPS; i++) {
        CHECK_STATUS(kv_bound_pushpull(context, 0, NULL), KV_OK);
    }
    return NULL;
}

/* Calls of one handle are made one after the other: each has its part in the sum. */
static void threads_share_a_handle(const char *type) {
    kv_store *store = open_store(type);
    pthread_t threads[THREADS];
    int64_t numbers[] = {1, 10}, got[] = {0, 0};
    kv_key keys[] = {1, 2};
    kv_tensor values[] = {number_tensor(&numbers[0]), number_tensor(&numbers[1])};
    kv_tensor outs[] = {number_tensor(&got[0]), number_tensor(&got[1])};
    kv_bound *bound = NULL;
    init_number(store, 1, 0);
    init_number(store, 2, 0);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    CHECK_STATUS(kv_bind(store, keys, values, 2, keys, outs, 2, &bound), KV_OK);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, push_often, bound) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    end_of_loan(got, sizeof got);
    CHECK(pull_number(store, 1) == THREADS * STEPS);
    CHECK(pull_number(store, 2) == 10 * THREADS * STEPS);
    kv_bound_free(bound);
    kv_free(store);
}

static void *push_once(void *context) {
    CHECK_STATUS(kv_bound_push(context, 0, NULL), KV_OK);
    return NULL;
}

/* A call of another thread goes on, and does not end: the second one has a deadline. */
static void a_handle_in_use_is_a_timeout(void) {
    kv_store *store = open_with("timeout_ms", "100");
    gate at = GATE_CLOSED;
    int64_t number = 5;
    kv_key key = 1;
    kv_tensor value = number_tensor(&number);
    kv_bound *bound = NULL;
    pthread_t thread;
    init_number(store, key, 0);
    CHECK_STATUS(kv_bind(store, &key, &value, 1, NULL, NULL, 0, &bound), KV_OK);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &at, NULL), KV_OK);
    CHECK(pthread_create(&thread, NULL, push_once, bound) == 0);
    gate_await(&at, 1);
    CHECK_STATUS(kv_bound_push(bound, 0, NULL), KV_ERR_TIMEOUT);
    CHECK(error_says("bound list"));
    gate_open(&at);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(pull_number(store, key) == 5);
    kv_bound_free(bound);
    kv_free(store);
}

typedef struct inside {
    kv_store *store;
    kv_bound *bound;
    int calls;
} inside;

/* An updater of the store may neither call nor free the list. */
static kv_status use_inside(void *context, kv_key key, const kv_tensor *input,
                            const kv_tensor *stored) {
    inside *own = context;
    own->calls++;
    CHECK_STATUS(kv_bound_push(own->bound, 0, NULL), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_bound_pull(own->bound, 0, &(kv_ticket){0}), KV_ERR_REENTRANT);
    kv_bound_free(own->bound);
    CHECK(error_says("updater"));
    return add_number(NULL, key, input, stored);
}

static void updaters_may_not_use_it(const char *type) {
    inside own = {.store = open_store(type)};
    int64_t number = 5;
    kv_key key = 1;
    kv_tensor value = number_tensor(&number);
    init_number(own.store, key, 0);
    CHECK_STATUS(kv_bind(own.store, &key, &value, 1, &key, &value, 1, &own.bound), KV_OK);
    CHECK_STATUS(kv_set_updater(own.store, use_inside, &own, NULL), KV_OK);
    CHECK_STATUS(kv_bound_push(own.bound, 0, NULL), KV_OK);
    CHECK(own.calls == 1);
    CHECK(pull_number(own.store, key) == 5);
    kv_bound_free(own.bound);
    kv_free(own.store);
}

int main(void) {
    alarm_after_minutes(5);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        calls_give_the_bits_of_a_scalar_loop(STORE_TYPES[i]);
        calls_give_the_bits_of_list_calls(STORE_TYPES[i]);
        pushes_have_the_weight_of_their_time(STORE_TYPES[i]);
        only_the_elements_are_lent(STORE_TYPES[i]);
        large_arrays(STORE_TYPES[i]);
        a_list_with_values_or_outs_only(STORE_TYPES[i]);
        outs_have_keys_of_their_own(STORE_TYPES[i]);
        an_out_may_be_its_value(STORE_TYPES[i]);
        what_binding_refuses(STORE_TYPES[i]);
        a_removed_key_is_an_error_that_changes_nothing(STORE_TYPES[i]);
        a_ticket_outlives_the_handle(STORE_TYPES[i]);
        a_call_waits_for_pending_operations(STORE_TYPES[i]);
        the_end_of_the_store(STORE_TYPES[i]);
        threads_share_a_handle(STORE_TYPES[i]);
        updaters_may_not_use_it(STORE_TYPES[i]);
    }
    a_handle_in_use_is_a_timeout();
    return check_passed("api_bound");
}
