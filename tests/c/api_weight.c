/* Weights of pushes: means of every float dtype against scalar loops, under rules, updaters and codecs, and
 * what is refused. */
#include "numbers.h"
#include "support.h"

enum { COUNT = 1500, VALUES = 5 };

/* sum / weight in the arithmetic of the dtype, before it is rounded to the dtype. */
static double mean_of(kv_dtype dtype, const double *values, int count, double weight) {
    if (dtype == KV_F64) {
        double sum = values[0];
        for (int i = 1; i < count; i++) {
            sum += values[i];
        }
        return sum / weight;
    }
    float sum = (float)values[0];
    for (int i = 1; i < count; i++) {
        sum += (float)values[i];
    }
    return (double)(sum / (float)weight);
}

/* A number that sums round. */
static double number_at(int value, int element) {
    return sin(value * 7.0 + element) * pow(2, (value * 5 + element) % 7 - 3);
}

static kv_round last_round(kv_store *store, kv_key key) {
    kv_round round = {sizeof round, UNTOUCHED, UNTOUCHED, -1};
    CHECK_STATUS(kv_last_round(store, key, &round), KV_OK);
    CHECK(round.struct_size == sizeof round);
    return round;
}

/* Values of a dtype, their mean, and the array that a pull fills. */
static void means_are_those_of_a_scalar_loop(const char *type, kv_dtype dtype, int count) {
    static uint64_t room[VALUES + 1][COUNT];
    const double weights[] = {1, 3, 32, 96.25, 0.1};
    kv_store *store = open_store(type);
    int64_t shape[] = {COUNT};
    kv_key keys[VALUES];
    kv_tensor values[VALUES];
    size_t size = dtype_size(dtype);
    for (int value = 0; value < count; value++) {
        keys[value] = 3;
        values[value] = kv_tensor_cpu(room[value], dtype, 1, shape);
        for (int at = 0; at < COUNT; at++) {
            save_bits(dtype, (char *)room[value] + (size_t)at * size,
                      encode_float(dtype, number_at(value, at)));
        }
    }
    kv_tensor out = kv_tensor_cpu(room[VALUES], dtype, 1, shape);
    CHECK_STATUS(kv_init(store, keys, values, 1), KV_OK);
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        CHECK_STATUS(kv_set_weight(store, weights[i]), KV_OK);
        if (i % 2 == 0) {
            CHECK_STATUS(kv_push(store, keys, values, (size_t)count, 0, NULL), KV_OK);
            CHECK_STATUS(kv_pull(store, keys, &out, 1, 0, NULL), KV_OK);
        } else {
            CHECK_STATUS(
                kv_pushpull(store, keys, values, (size_t)count, keys, &out, 1, 0, NULL), KV_OK);
        }
        for (int at = 0; at < COUNT; at++) {
            double elements[VALUES];
            for (int value = 0; value < count; value++) {
                elements[value] =
                    decode_float(dtype, load_bits(dtype, (char *)room[value] + (size_t)at * size));
            }
            uint64_t expected = encode_float(dtype, mean_of(dtype, elements, count, weights[i]));
            CHECK(load_bits(dtype, (char *)room[VALUES] + (size_t)at * size) == expected);
        }
        kv_round round = last_round(store, 3);
        CHECK(round.round == i + 1 && round.contributors == 1 && round.total_weight == weights[i]);
    }
    kv_free(store);
}

/* The sum of 70 values of float16 would be infinite; their mean is exact. */
static void a_mean_of_equal_halves_is_exact(void) {
    enum { EQUAL = 70 };
    kv_store *store = open_store("local");
    uint16_t value = (uint16_t)encode_float(KV_F16, 1000.5), got = 0;
    kv_key keys[EQUAL];
    kv_tensor values[EQUAL], out = kv_tensor_cpu(&got, KV_F16, 0, NULL);
    for (int i = 0; i < EQUAL; i++) {
        keys[i] = 1;
        values[i] = kv_tensor_cpu(&value, KV_F16, 0, NULL);
    }
    CHECK_STATUS(kv_init(store, keys, values, 1), KV_OK);
    CHECK_STATUS(kv_set_weight(store, EQUAL), KV_OK);
    CHECK_STATUS(kv_pushpull(store, keys, values, EQUAL, keys, &out, 1, 0, NULL), KV_OK);
    CHECK(got == value);
    kv_free(store);
}

static float number = 0;

static kv_tensor float_tensor(float *value) {
    return kv_tensor_cpu(value, KV_F32, 0, NULL);
}

static float pulled(kv_store *store, kv_key key) {
    float value = -1;
    kv_tensor out = float_tensor(&value);
    CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
    return value;
}

static kv_status push_two(kv_store *store, kv_key key, float one, float two) {
    kv_key keys[] = {key, key};
    kv_tensor values[] = {float_tensor(&one), float_tensor(&two)};
    border_of_library();
    return kv_push(store, keys, values, 2, 0, NULL);
}

static void init_float(kv_store *store, kv_key key, float value) {
    kv_tensor tensor = float_tensor(&value);
    CHECK_STATUS(kv_init(store, &key, &tensor, 1), KV_OK);
}

static kv_status note(void *context, kv_key key, const kv_tensor *input, const kv_tensor *stored) {
    (void)context;
    (void)key;
    number = *(const float *)input->data;
    *(float *)stored->data += number;
    return KV_OK;
}

/* A rule and an updater get the mean; a rule multiplies it by its own rescale_grad. */
static void rules_and_updaters_get_the_mean(const char *type) {
    kv_store *store = open_store(type);
    init_float(store, 1, 10);
    CHECK_STATUS(kv_set_optimizer(store, "sgd", "learning_rate=0.5"), KV_OK);
    CHECK_STATUS(kv_set_weight(store, 4), KV_OK);
    CHECK_STATUS(push_two(store, 1, 5, 7), KV_OK);
    CHECK(pulled(store, 1) == 10 - 0.5F * 3);
    CHECK_STATUS(kv_set_hyperparameter(store, "rescale_grad", 2), KV_OK);
    CHECK_STATUS(push_two(store, 1, 5, 7), KV_OK);
    CHECK(pulled(store, 1) == 8.5F - 0.5F * 6);
    /* The weight stays when the rule goes, also for one value. */
    CHECK_STATUS(kv_set_updater(store, note, NULL, NULL), KV_OK);
    float value = 6;
    kv_key key = 1;
    kv_tensor tensor = float_tensor(&value);
    CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, NULL), KV_OK);
    CHECK(number == 1.5F && pulled(store, 1) == 7 && value == 6);
    CHECK_STATUS(push_two(store, 1, 1, 2), KV_OK);
    CHECK(number == 0.75F);
    CHECK_STATUS(kv_clear_weight(store), KV_OK);
    CHECK_STATUS(push_two(store, 1, 1, 2), KV_OK);
    CHECK(number == 3 && last_round(store, 1).total_weight == 0);
    kv_free(store);
}

/* A push with a ticket has the weight of the moment of its call. */
static void a_ticket_keeps_its_weight(const char *type) {
    kv_store *store = open_store(type);
    gate wait = GATE_CLOSED;
    float value = 12;
    kv_key key = 2;
    kv_tensor tensor = float_tensor(&value);
    kv_ticket tickets[2], blocker;
    int64_t one = 1;
    init_number(store, 1, 0);
    init_float(store, key, 0);
    CHECK_STATUS(kv_set_updater(store, add_behind_gate, &wait, NULL), KV_OK);
    blocker = send_number(store, 1, &one, 0);
    gate_await(&wait, 1);
    CHECK_STATUS(kv_set_updater(store, note, NULL, NULL), KV_OK);
    CHECK_STATUS(kv_set_weight(store, 4), KV_OK);
    CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, &tickets[0]), KV_OK);
    CHECK_STATUS(kv_set_weight(store, 3), KV_OK);
    CHECK_STATUS(kv_push(store, &key, &tensor, 1, 0, &tickets[1]), KV_OK);
    CHECK_STATUS(kv_clear_weight(store), KV_OK);
    gate_open(&wait);
    CHECK_STATUS(kv_wait(store, blocker, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_wait(store, tickets[0], WAIT_MS), KV_OK);
    CHECK_STATUS(kv_wait(store, tickets[1], WAIT_MS), KV_OK);
    CHECK(pulled(store, key) == 7 && last_round(store, key).total_weight == 3);
    kv_free(store);
}

/* Rows: each pushed row is divided, whether the rule sees the others or not. */
static void rows_are_divided(const char *type) {
    for (int with_rule = 0; with_rule < 2; with_rule++) {
        kv_store *store = open_store(type);
        float table[8] = {0}, rows[6] = {8, 16, 2, 4, 1, 3}, out[8];
        int64_t ids[] = {3, 1, 1}, shape[] = {4, 2}, rows_shape[] = {3, 2}, ids_shape[] = {3};
        kv_key key = 1;
        kv_tensor first = kv_tensor_cpu(table, KV_F32, 2, shape);
        kv_tensor pushed = kv_tensor_cpu(rows, KV_F32, 2, rows_shape);
        kv_tensor which = kv_tensor_cpu(ids, KV_I64, 1, ids_shape);
        kv_tensor into = kv_tensor_cpu(out, KV_F32, 2, shape);
        CHECK_STATUS(kv_init(store, &key, &first, 1), KV_OK);
        if (with_rule) {
            CHECK_STATUS(kv_set_optimizer(store, "sgd", "learning_rate=1,momentum=0.5"), KV_OK);
        }
        CHECK_STATUS(kv_set_weight(store, 4), KV_OK);
        CHECK_STATUS(kv_push_rows(store, &key, &which, &pushed, 1, 0, NULL), KV_OK);
        CHECK_STATUS(kv_pull(store, &key, &into, 1, 0, NULL), KV_OK);
        float sign = with_rule ? -1 : 1;
        float expected[8] = {0, 0, 0.75F * sign, 1.75F * sign, 0, 0, 2 * sign, 4 * sign};
        for (int i = 0; i < 8; i++) {
            CHECK(out[i] == expected[i]);
        }
        CHECK(last_round(store, key).total_weight == 4);
        kv_free(store);
    }
}

/* The decoded values are added up, and the sum is divided. */
static void decoded_values_are_divided(const char *type) {
    for (int with_rule = 0; with_rule < 2; with_rule++) {
        kv_store *store = open_store(type);
        init_float(store, 1, 0);
        CHECK_STATUS(kv_set_compression(store, "2bit", "threshold=2"), KV_OK);
        CHECK_STATUS(kv_set_weight(store, 8), KV_OK);
        if (with_rule) {
            CHECK_STATUS(kv_set_optimizer(store, "sgd", "learning_rate=1"), KV_OK);
        }
        CHECK_STATUS(push_two(store, 1, 3, 5), KV_OK);
        CHECK(pulled(store, 1) == (with_rule ? -0.5F : 0.5F));
        kv_free(store);
    }
}

static void what_is_no_weight_is_refused(const char *type) {
    const double bad[] = {-1, -0x1p-60, 0x1p-101, 0x1p101, (double)INFINITY, (double)-INFINITY, (double)NAN};
    kv_store *store = open_store(type);
    init_float(store, 1, 5);
    init_number(store, 2, 7);
    CHECK_STATUS(kv_set_weight(store, 2), KV_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_STATUS(kv_set_weight(store, bad[i]), KV_ERR_INVALID_ARGUMENT);
        CHECK(error_says("weight"));
    }
    CHECK_STATUS(push_two(store, 1, 3, 5), KV_OK);
    CHECK(pulled(store, 1) == 4); /* the weight before them */
    CHECK_STATUS(push_number(store, 2, 9), KV_ERR_DTYPE_MISMATCH);
    CHECK(error_says("key 2") && error_says("weight"));
    CHECK(pull_number(store, 2) == 7);
    /* A list is refused as a whole. */
    kv_key keys[] = {1, 2};
    float value = 100;
    int64_t whole = 100;
    kv_tensor values[] = {float_tensor(&value), number_tensor(&whole)};
    CHECK_STATUS(kv_push(store, keys, values, 2, 0, NULL), KV_ERR_DTYPE_MISMATCH);
    CHECK(pulled(store, 1) == 4 && last_round(store, 1).round == 1);
    /* A push of weight 0 is a round by itself here. */
    CHECK_STATUS(kv_set_weight(store, 0), KV_OK);
    CHECK_STATUS(push_two(store, 1, 3, 5), KV_ERR_INVALID_ARGUMENT);
    CHECK(error_says("no mean") && pulled(store, 1) == 4);
    CHECK_STATUS(kv_set_weight(store, 0x1p-100), KV_OK);
    CHECK_STATUS(kv_set_weight(store, 0x1p100), KV_OK);
    CHECK_STATUS(kv_clear_weight(store), KV_OK);
    CHECK_STATUS(push_number(store, 2, 9), KV_OK);
    CHECK(pull_number(store, 2) == 9);
    kv_free(store);
}

static void a_round_is_read_by_its_size(const char *type) {
    kv_store *store = open_store(type);
    init_float(store, 1, 5);
    kv_round round = {sizeof round - 1, 9, 9, 9};
    CHECK_STATUS(kv_last_round(store, 1, &round), KV_ERR_INVALID_ARGUMENT);
    CHECK(round.round == 9 && error_says("struct_size"));
    struct {
        kv_round round;
        uint64_t later;
    } larger = {{sizeof larger, 9, 9, 9}, 77};
    CHECK_STATUS(kv_last_round(store, 1, &larger.round), KV_OK);
    CHECK(larger.round.round == 0 && larger.round.contributors == 0 && larger.later == 77);
    CHECK_STATUS(kv_last_round(store, 404, &larger.round), KV_ERR_KEY_NOT_FOUND);
    CHECK(error_says("key 404"));
    CHECK_STATUS(kv_last_round(store, 1, NULL), KV_ERR_INVALID_ARGUMENT);
    kv_free(store);
}

int main(void) {
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        const char *type = STORE_TYPES[i];
        for (int dtype = 0; dtype < FLOAT_DTYPE_COUNT; dtype++) {
            for (int count = 1; count <= VALUES; count++) {
                means_are_those_of_a_scalar_loop(type, FLOAT_DTYPES[dtype], count);
            }
        }
        rules_and_updaters_get_the_mean(type);
        a_ticket_keeps_its_weight(type);
        rows_are_divided(type);
        decoded_values_are_divided(type);
        what_is_no_weight_is_refused(type);
        a_round_is_read_by_its_size(type);
    }
    a_mean_of_equal_halves_is_exact();
    return check_passed("api_weight");
}
