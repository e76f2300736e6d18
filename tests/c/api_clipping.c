/* Clipping by the norm of the gradients of a call: norms and steps of every float dtype against scalar loops, calls
 * that are skipped or fail, and what is refused. */
#include "numbers.h"
#include "support.h"

#include <fenv.h>

enum { COUNT = 5000, VALUES = 3, KEYS = 2, BLOCK = 2048, LANES = 8 };

static const double MAX_NORM = 1.5;

/* A number that sums round. */
static double number_at(int value, int element) {
    return sin(value * 7.0 + element) * pow(2, (value * 5 + element) % 7 - 3);
}

/* A number in a dtype: the sum of float32, or of float64. */
static double rounded(kv_dtype dtype, double number) {
    return decode_float(dtype, encode_float(dtype, number));
}

static double sum_of(kv_dtype dtype, const double *numbers) {
    if (dtype == KV_F64) {
        return (numbers[0] + numbers[1]) + numbers[2];
    }
    float sum = ((float)numbers[0] + (float)numbers[1]) + (float)numbers[2];
    return rounded(dtype, (double)sum);
}

/* The order that docs/use/semantics.md gives. */
static double squares_of(const double *gradient, int count) {
    double all = 0;
    for (int start = 0; start < count; start += BLOCK) {
        double sums[LANES] = {0};
        for (int i = start; i < count && i < start + BLOCK; i++) {
            sums[(i - start) % LANES] += gradient[i] * gradient[i];
        }
        for (int half = LANES / 2; half > 0; half /= 2) {
            for (int i = 0; i < half; i++) {
                sums[i] += sums[i + half];
            }
        }
        all += sums[0];
    }
    return all;
}

static double norm_of(kv_store *store, uint64_t skips) {
    double norm = -1;
    uint64_t found = UNTOUCHED;
    CHECK_STATUS(kv_last_norm(store, &norm, &found), KV_OK);
    CHECK(found == skips);
    return norm;
}

static double factor_of(double norm) {
    double factor = MAX_NORM / (norm + 1e-6);
    return factor < 1 ? factor : 1;
}

/* w - g * factor, of the rule sgd with a learning rate of 1: rounded at each operation. */
static double stepped(kv_dtype dtype, double value, double gradient, double factor) {
    if (dtype == KV_F64) {
        return value - 1 * (factor * gradient + 0 * value);
    }
    float scaled = (float)factor * (float)gradient;
    return rounded(dtype, (double)((float)value - (scaled + 0 * (float)value)));
}

/* Two keys with three values each, keys mixed, then steps of one and of the other alone. */
static void steps_are_those_of_a_scalar_loop(const char *type, kv_dtype dtype) {
    static uint64_t room[KEYS * VALUES][COUNT], init[COUNT], got[COUNT];
    static double gradients[KEYS][COUNT];
    kv_store *store = open_store(type);
    int64_t shape[] = {COUNT};
    size_t size = dtype_size(dtype);
    kv_key keys[KEYS * VALUES];
    kv_tensor values[KEYS * VALUES];
    for (int at = 0; at < COUNT; at++) {
        save_bits(dtype, (char *)init + (size_t)at * size, encode_float(dtype, 0.25));
    }
    for (int i = 0; i < KEYS * VALUES; i++) {
        keys[i] = i % 2 == 0 ? 8 : 3;
        values[i] = kv_tensor_cpu(room[i], dtype, 1, shape);
        for (int at = 0; at < COUNT; at++) {
            save_bits(dtype, (char *)room[i] + (size_t)at * size, encode_float(dtype, number_at(i, at)));
        }
    }
    for (int key = 0; key < KEYS; key++) {
        for (int at = 0; at < COUNT; at++) {
            double numbers[VALUES];
            for (int value = 0; value < VALUES; value++) {
                /* The first of `keys` is the larger one. */
                numbers[value] = rounded(dtype, number_at(2 * value + 1 - key, at));
            }
            gradients[key][at] = sum_of(dtype, numbers);
        }
        kv_tensor first = kv_tensor_cpu(init, dtype, 1, shape);
        CHECK_STATUS(kv_init(store, &(kv_key){key == 0 ? 3 : 8}, &first, 1), KV_OK);
    }
    CHECK_STATUS(kv_set_optimizer(store, "sgd", "learning_rate=1"), KV_OK);
    CHECK_STATUS(kv_set_clipping(store, MAX_NORM, 0), KV_OK);
    CHECK(isnan(norm_of(store, 0)));
    CHECK_STATUS(kv_push(store, keys, values, KEYS * VALUES, 0, NULL), KV_OK);
    double norm = sqrt(squares_of(gradients[0], COUNT) + squares_of(gradients[1], COUNT));
    CHECK(norm_of(store, 0) == norm && norm > 10 * MAX_NORM);
    for (int key = 0; key < KEYS; key++) {
        kv_tensor out = kv_tensor_cpu(got, dtype, 1, shape);
        CHECK_STATUS(kv_pull(store, &(kv_key){key == 0 ? 3 : 8}, &out, 1, 0, NULL), KV_OK);
        for (int at = 0; at < COUNT; at++) {
            double expected = stepped(dtype, 0.25, gradients[key][at], factor_of(norm));
            CHECK(load_bits(dtype, (char *)got + (size_t)at * size) == encode_float(dtype, expected));
        }
    }
    /* A call of one key is measured by itself. */
    CHECK_STATUS(kv_pushpull(store, keys, values, 1, keys, &values[1], 1, 0, NULL), KV_OK);
    double only[COUNT];
    for (int at = 0; at < COUNT; at++) {
        only[at] = rounded(dtype, number_at(0, at));
    }
    CHECK(norm_of(store, 0) == sqrt(squares_of(only, COUNT)));
    kv_free(store);
}

static kv_tensor float_tensor(float *value) {
    return kv_tensor_cpu(value, KV_F32, 0, NULL);
}

static kv_store *open_adam(const char *type) {
    kv_store *store = open_store(type);
    for (kv_key key = 1; key < 3; key++) {
        float value = 10;
        kv_tensor tensor = float_tensor(&value);
        CHECK_STATUS(kv_init(store, &key, &tensor, 1), KV_OK);
    }
    CHECK_STATUS(kv_set_optimizer(store, "adam", "learning_rate=0.5"), KV_OK);
    return store;
}

/* A pushpull of both keys. */
static kv_status make(kv_store *store, float one, float two, float outs[2], kv_ticket *ticket) {
    static kv_key keys[] = {1, 2};
    static float numbers[2];
    static kv_tensor tensors[4];
    numbers[0] = one, numbers[1] = two;
    for (int i = 0; i < 2; i++) {
        tensors[i] = float_tensor(&numbers[i]);
        tensors[2 + i] = float_tensor(&outs[i]);
    }
    border_of_library();
    kv_status status = kv_pushpull(store, keys, tensors, 2, keys, tensors + 2, 2, 0, ticket);
    return status == KV_OK && ticket != NULL ? kv_wait(store, *ticket, WAIT_MS) : status;
}

static void what_is_not_finite_is_skipped(const char *type, kv_ticket *ticket) {
    const float bad[] = {NAN, INFINITY, -INFINITY};
    kv_store *store = open_adam(type), *plain = open_adam(type);
    float outs[2] = {-1, -1}, expected[2] = {10, 10};
    CHECK_STATUS(kv_set_clipping(store, (double)INFINITY, 0), KV_OK);
    for (uint64_t i = 0; i < 3; i++) {
        CHECK_STATUS(make(store, 1, bad[i], outs, ticket), KV_OK);
        CHECK(outs[0] == expected[0] && outs[1] == expected[1]);
        CHECK(!isfinite(norm_of(store, i + 1)));
        kv_round round = {sizeof round, 9, 9, 9};
        CHECK_STATUS(kv_last_round(store, 1, &round), KV_OK);
        CHECK(round.round == i);
        CHECK_STATUS(make(store, 3, 4, outs, ticket), KV_OK);
        CHECK(norm_of(store, i + 1) == 5);
        CHECK_STATUS(make(plain, 3, 4, expected, NULL), KV_OK);
        CHECK(outs[0] == expected[0] && outs[1] == expected[1]);
    }
    kv_free(store);
    kv_free(plain);
}

static void with_the_flag_the_call_fails(const char *type, kv_ticket *ticket) {
    kv_store *store = open_adam(type);
    float outs[2] = {-1, -1};
    CHECK_STATUS(kv_set_clipping(store, 1, KV_CLIP_FAIL), KV_OK);
    CHECK_STATUS(make(store, 1, INFINITY, outs, ticket), KV_ERR_INVALID_ARGUMENT);
    CHECK(error_says("key 2") && error_says("pushpull") && error_says("not finite"));
    CHECK_STATUS(make(store, NAN, NAN, outs, ticket), KV_ERR_INVALID_ARGUMENT);
    CHECK(error_says("key 1"));
    CHECK(isnan(norm_of(store, 0)) && outs[0] == -1 && outs[1] == -1);
    CHECK_STATUS(kv_set_clipping(store, 0, 0), KV_OK);
    CHECK_STATUS(make(store, 0, 0, outs, ticket), KV_OK);
    CHECK(outs[0] == 10 && outs[1] == 10 && isnan(norm_of(store, 0)));
    kv_free(store);
}

static double seen_at_the_end = 0;

static void note_norm(void *context, kv_ticket ticket, kv_status status) {
    uint64_t skips = 0;
    (void)ticket;
    CHECK(status == KV_OK);
    CHECK_STATUS(kv_last_norm(context, &seen_at_the_end, &skips), KV_OK);
}

static void the_end_of_an_operation_may_read_the_norm(void) {
    kv_store *store = open_adam("local");
    float numbers[] = {3, 4};
    kv_key keys[] = {1, 2};
    kv_tensor tensors[] = {float_tensor(&numbers[0]), float_tensor(&numbers[1])};
    kv_ticket ticket = 0;
    CHECK_STATUS(kv_set_clipping(store, 1, 0), KV_OK);
    CHECK_STATUS(kv_push(store, keys, tensors, 2, 0, &ticket), KV_OK);
    CHECK_STATUS(kv_on_done(store, ticket, note_norm, store, NULL), KV_OK);
    CHECK_STATUS(kv_close(store, WAIT_MS), KV_OK);
    CHECK(seen_at_the_end == 5);
    kv_free(store);
}

static float seen_by_updater = 0;

static kv_status note_input(void *context, kv_key key, const kv_tensor *input, const kv_tensor *stored) {
    (void)context, (void)key, (void)stored;
    seen_by_updater = *(const float *)input->data;
    return KV_OK;
}

/* The caller's rounding changes no bit of a norm, of what an updater gets, and of a step. */
static void the_rounding_of_the_caller_has_no_effect(void) {
    const int roundings[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    double norms[4];
    float inputs[4], steps[4][2];
    for (int i = 0; i < 4; i++) {
        kv_store *store = open_adam("local");
        CHECK_STATUS(kv_set_updater(store, note_input, NULL, NULL), KV_OK);
        CHECK_STATUS(kv_set_optimizer_for(store, &(kv_key){1}, 1, "sgd", "rescale_grad=0.3"), KV_OK);
        CHECK_STATUS(kv_set_clipping(store, 0.7, 0), KV_OK);
        CHECK(fesetround(roundings[i]) == 0);
        kv_status status = make(store, 1.1f, 3.7f, steps[i], NULL);
        CHECK(fegetround() == roundings[i]);
        CHECK(fesetround(FE_TONEAREST) == 0);
        CHECK(status == KV_OK);
        norms[i] = norm_of(store, 0);
        inputs[i] = seen_by_updater;
        CHECK(norms[i] == norms[0] && inputs[i] == inputs[0]);
        CHECK(steps[i][0] == steps[0][0] && steps[i][1] == steps[0][1]);
        kv_free(store);
    }
    CHECK(norms[0] > 3.7 && inputs[0] < 0.7f);
}

static void bad_arguments_are_refused(const char *type) {
    const double bad[] = {-1, -0x1p-1000, (double)-INFINITY, (double)NAN};
    kv_store *store = open_adam(type);
    float outs[2] = {-1, -1};
    double norm = -1;
    uint64_t skips = UNTOUCHED;
    CHECK_STATUS(kv_set_clipping(store, 4, 0), KV_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_STATUS(kv_set_clipping(store, bad[i], 0), KV_ERR_INVALID_ARGUMENT);
        CHECK(error_says("max_norm"));
    }
    CHECK_STATUS(kv_set_clipping(store, 1, 2), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_set_clipping(store, 0, KV_CLIP_FAIL | 0x80000000u), KV_ERR_INVALID_ARGUMENT);
    CHECK(error_says("flags"));
    CHECK_STATUS(kv_last_norm(store, NULL, &skips), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_last_norm(store, &norm, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK(norm == -1 && skips == UNTOUCHED);
    CHECK_STATUS(make(store, 3, 4, outs, NULL), KV_OK);
    CHECK(norm_of(store, 0) == 5); /* the setting before them */
    CHECK_STATUS(kv_set_compression(store, "2bit", NULL), KV_ERR_UNSUPPORTED);
    CHECK(error_says("kv_set_compression") || error_says("set_clipping"));
    CHECK(kv_capable("clipping") == 1);
    kv_free(store);
}

int main(void) {
    kv_ticket ticket = 0;
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        const char *type = STORE_TYPES[i];
        for (int dtype = 0; dtype < FLOAT_DTYPE_COUNT; dtype++) {
            steps_are_those_of_a_scalar_loop(type, FLOAT_DTYPES[dtype]);
        }
        what_is_not_finite_is_skipped(type, NULL);
        what_is_not_finite_is_skipped(type, &ticket);
        with_the_flag_the_call_fails(type, NULL);
        with_the_flag_the_call_fails(type, &ticket);
        bad_arguments_are_refused(type);
    }
    the_end_of_an_operation_may_read_the_norm();
    the_rounding_of_the_caller_has_no_effect();
    return check_passed("api_clipping");
}
