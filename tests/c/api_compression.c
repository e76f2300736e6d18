/* Compression: codecs and options by name, good and bad ones, and what arrives of pushes. */
#include "support.h"

#include <math.h>

enum { COUNT = 21 };

static kv_tensor floats(float *numbers, int64_t *shape) {
    return kv_tensor_cpu(numbers, KV_F32, 1, shape);
}

static int64_t of_count[] = {COUNT};

static void init_zeros(kv_store *store, kv_key key) {
    float zeros[COUNT] = {0};
    kv_tensor value = floats(zeros, of_count);
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
}

static void push_floats(kv_store *store, kv_key key, float *numbers) {
    kv_tensor value = floats(numbers, of_count);
    CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL), KV_OK);
}

static void pull_floats(kv_store *store, kv_key key, float *numbers) {
    kv_tensor out = floats(numbers, of_count);
    CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
}

/* The call is refused with this status, and the message contains the text. */
#define CHECK_REFUSED(call, status, text) \
    do {                                  \
        CHECK_STATUS(call, status);       \
        CHECK(error_says(text));          \
    } while (0)

/* Numbers from -2 to 2, other ones in each round. */
static void fill(float *numbers, int round) {
    for (int i = 0; i < COUNT; i++) {
        numbers[i] = (float)((i * 37 + round * 53) % 101) / 25 - 2;
    }
}

static void every_codec_is_known(const char *type) {
    static const char *const codecs[] = {"1bit", "2bit", "fp16", "bf16", "int8", "topk", "randomk"};
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        float numbers[COUNT], out[COUNT];
        kv_store *store = open_store(type);
        init_zeros(store, 1);
        CHECK_STATUS(kv_set_compression(store, codecs[i], NULL), KV_OK);
        fill(numbers, 0);
        push_floats(store, 1, numbers);
        pull_floats(store, 1, out);
        CHECK(memcmp(numbers, out, sizeof out) != 0);
        CHECK_STATUS(kv_set_compression(store, "none", ""), KV_OK);
        push_floats(store, 1, numbers);
        pull_floats(store, 1, out);
        CHECK(memcmp(numbers, out, sizeof out) == 0);
        kv_free(store);
    }
}

/* Two bits, as they are defined. */
static float two_bits(float x, float threshold, float *residual) {
    *residual += x;
    float sent = *residual >= threshold ? threshold : *residual <= -threshold ? -threshold : 0;
    *residual -= sent;
    return sent;
}

static void each_value_has_a_residual(const char *type) {
    float a[COUNT], b[COUNT], out[COUNT], left_of_a[COUNT] = {0}, left_of_b[COUNT] = {0};
    kv_store *store = open_store(type);
    kv_key keys[] = {7, 7};
    init_zeros(store, 7);
    CHECK_STATUS(kv_set_compression(store, "2Bit", " threshold = 0.75 "), KV_OK);
    for (int round = 0; round < 10; round++) {
        fill(a, round);
        fill(b, round + 100);
        kv_tensor values[] = {floats(a, of_count), floats(b, of_count)};
        CHECK_STATUS(kv_push(store, keys, values, 2, 0, NULL), KV_OK);
        pull_floats(store, 7, out);
        for (int i = 0; i < COUNT; i++) {
            float arrived = two_bits(a[i], 0.75f, &left_of_a[i]);
            arrived += two_bits(b[i], 0.75f, &left_of_b[i]);
            CHECK(out[i] == arrived);
        }
    }
    kv_free(store);
}

/* An out may be exactly a value: it is read before it is written. */
static void pushpull_works_in_place(const char *type) {
    float numbers[COUNT], before[COUNT], residual[COUNT] = {0};
    kv_store *store = open_store(type);
    kv_key key = 7;
    init_zeros(store, 7);
    CHECK_STATUS(kv_set_compression(store, "2bit", NULL), KV_OK);
    for (int round = 0; round < 5; round++) {
        fill(numbers, round);
        memcpy(before, numbers, sizeof before);
        kv_tensor tensor = floats(numbers, of_count);
        CHECK_STATUS(kv_pushpull(store, &key, &tensor, 1, &key, &tensor, 1, 0, NULL), KV_OK);
        for (int i = 0; i < COUNT; i++) {
            CHECK(numbers[i] == two_bits(before[i], 0.5f, &residual[i]));
        }
    }
    kv_free(store);
}

static void operations_with_a_ticket_are_compressed_too(const char *type) {
    float numbers[COUNT], out[COUNT], residual[COUNT] = {0};
    kv_store *store = open_store(type);
    kv_key key = 7;
    kv_ticket ticket = 0;
    init_zeros(store, 7);
    CHECK_STATUS(kv_set_compression(store, "2bit", NULL), KV_OK);
    fill(numbers, 3);
    kv_tensor value = floats(numbers, of_count);
    CHECK_STATUS(kv_push(store, &key, &value, 1, 0, &ticket), KV_OK);
    CHECK_STATUS(kv_wait(store, ticket, WAIT_MS), KV_OK);
    pull_floats(store, 7, out);
    for (int i = 0; i < COUNT; i++) {
        CHECK(out[i] == two_bits(numbers[i], 0.5f, &residual[i]));
    }
    kv_free(store);
}

static void a_nan_arrives_where_there_is_room(const char *type) {
    static const char *const codecs[] = {"2bit", "fp16", "bf16", "int8", "topk"};
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        float numbers[COUNT] = {NAN}, out[COUNT];
        kv_store *store = open_store(type);
        init_zeros(store, 1);
        CHECK_STATUS(kv_set_compression(store, codecs[i], NULL), KV_OK);
        push_floats(store, 1, numbers);
        pull_floats(store, 1, out);
        CHECK(isnan(out[0]) && out[1] == 0);
        numbers[0] = 0;
        push_floats(store, 1, numbers);
        pull_floats(store, 1, out);
        CHECK(out[0] == 0);
        kv_free(store);
    }
}

static void bad_names_and_options_say_what_would_do(const char *type) {
    static const char *const bad[][3] = {
        {"2bits", NULL, "there is no codec \"2bits\"; did you mean"},
        {"gzip", NULL, "the codecs are none, 1bit, 2bit, fp16, bf16, int8, topk, randomk"},
        {"2bit", "threshold=0", "codec 2bit: threshold is 0; it must be a number above 0"},
        {"2bit", "treshold=1", "did you mean threshold?"},
        {"1bit", "feedback=true", "feedback is always on with this codec"},
        {"topk", "ratio=1.5", "ratio is 1.5; it must be a number above 0 and up to 1"},
        {"randomk", "seed=x", "seed is \"x\"; it must be a whole number from 0"},
        {"int8", "feedback", "\"feedback\" is not of the form name=value"},
        {"none", "a=1", "codec none: there is no option \"a\"; there are none"},
    };
    float numbers[COUNT], out[COUNT], residual = 0;
    kv_store *store = open_store(type);
    init_zeros(store, 1);
    CHECK_STATUS(kv_set_compression(store, "2bit", "threshold=2"), KV_OK);
    for (int i = 0; i < COUNT; i++) {
        numbers[i] = 1.5f;
    }
    push_floats(store, 1, numbers);
    two_bits(1.5f, 2, &residual);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_REFUSED(kv_set_compression(store, bad[i][0], bad[i][1]), KV_ERR_OPTION, bad[i][2]);
        CHECK(error_says("set_compression: "));
    }
    CHECK_REFUSED(kv_set_compression(store, NULL, NULL), KV_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(kv_set_compression(NULL, "2bit", NULL), KV_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(kv_set_compression(store, "2\xff", NULL), KV_ERR_INVALID_ARGUMENT, "UTF-8");
    CHECK_REFUSED(kv_set_compression(store, "2bit", "\xff"), KV_ERR_INVALID_ARGUMENT, "UTF-8");
    /* Codec and residuals are as they were. */
    push_floats(store, 1, numbers);
    pull_floats(store, 1, out);
    CHECK(out[0] == 2 && out[0] == two_bits(1.5f, 2, &residual));
    kv_free(store);
}

static void keys_that_a_codec_cannot_take_are_refused(const char *type) {
    double number = 1;
    kv_key key = 3;
    kv_tensor value = kv_tensor_cpu(&number, KV_F64, 0, NULL);
    kv_store *store = open_store(type);
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    CHECK_REFUSED(kv_set_compression(store, "2bit", NULL), KV_ERR_DTYPE_MISMATCH,
                  "set_compression: key 3 is float64[]: the codec 2bit takes float32 only");
    CHECK_STATUS(kv_set_compression(store, "fp16", NULL), KV_OK);
    CHECK_STATUS(kv_remove(store, &key, 1), KV_OK);
    CHECK_STATUS(kv_set_compression(store, "2bit", NULL), KV_OK);
    CHECK_REFUSED(kv_init(store, &key, &value, 1), KV_ERR_DTYPE_MISMATCH, "init: key 3 is float64");
    CHECK_REFUSED(kv_broadcast(store, &key, &value, 1, &key, &value, 1, 0, NULL),
                  KV_ERR_DTYPE_MISMATCH, "broadcast: key 3 is float64");
    /* Integers pass as they are. */
    init_number(store, 3, 0);
    CHECK_STATUS(push_number(store, 3, 12345), KV_OK);
    CHECK(pull_number(store, 3) == 12345);
    kv_free(store);
}

/* Names and lists are copied: the buffers may change as soon as the call has returned. */
static void arguments_are_copied(const char *type) {
    char name[] = "2bit", params[] = "threshold=2", text[1024];
    kv_store *store = open_store(type);
    CHECK_STATUS(kv_set_compression(store, name, params), KV_OK);
    memset(name, 'x', sizeof name - 1);
    memset(params, 'x', sizeof params - 1);
    CHECK_STATUS(kv_stats(store, text, sizeof text, NULL), KV_OK);
    CHECK(strstr(text, "\"compression\":\"2bit\"") != NULL);
    CHECK(strstr(text, "\"compression_params\":\"threshold=2\"") != NULL);
    kv_free(store);
}

static void a_closed_store_takes_no_codec(const char *type) {
    kv_store *store = open_store(type);
    CHECK_STATUS(kv_close(store, WAIT_MS), KV_OK);
    CHECK_STATUS(kv_set_compression(store, "2bit", NULL), KV_ERR_CLOSED);
    kv_free(store);
}

int main(void) {
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        every_codec_is_known(STORE_TYPES[i]);
        each_value_has_a_residual(STORE_TYPES[i]);
        pushpull_works_in_place(STORE_TYPES[i]);
        operations_with_a_ticket_are_compressed_too(STORE_TYPES[i]);
        a_nan_arrives_where_there_is_room(STORE_TYPES[i]);
        bad_names_and_options_say_what_would_do(STORE_TYPES[i]);
        keys_that_a_codec_cannot_take_are_refused(STORE_TYPES[i]);
        arguments_are_copied(STORE_TYPES[i]);
        a_closed_store_takes_no_codec(STORE_TYPES[i]);
    }
    return check_passed("api_compression");
}
