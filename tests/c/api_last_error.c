/* kv_last_error: a text for people, one for each thread. */
#include "support.h"

static void *text_of_a_new_thread(void *context) {
    (void)context;
    CHECK(kv_last_error() != NULL);
    CHECK(strcmp(kv_last_error(), "") == 0);
    CHECK_STATUS(kv_create("thread type", NULL, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK(strlen(kv_last_error()) > 0);
    return NULL;
}

static void each_thread_has_its_own_text(void) {
    pthread_t thread;
    kv_store *store = open_store("local");
    int64_t number = 0;
    kv_key key = 1234;
    kv_tensor out = number_tensor(&number);
    CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_ERR_KEY_NOT_FOUND);
    CHECK(error_says("key 1234"));
    CHECK(pthread_create(&thread, NULL, text_of_a_new_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(error_says("key 1234"));
    kv_free(store);
}

/* The text is that of the last failed call: calls that succeed leave it. */
static void success_leaves_the_text(void) {
    kv_store *store = open_store("local");
    kv_key key = 77;
    CHECK_STATUS(kv_remove(store, &key, 1), KV_ERR_KEY_NOT_FOUND);
    init_number(store, 1, 10);
    CHECK(pull_number(store, 1) == 10);
    CHECK(error_says("key 77"));
    kv_free(store);
    CHECK(error_says("key 77"));
    key = 78;
    store = open_store("local");
    CHECK_STATUS(kv_remove(store, &key, 1), KV_ERR_KEY_NOT_FOUND);
    CHECK(error_says("key 78"));
    CHECK(!error_says("key 77"));
    kv_free(store);
}

static void mismatches_name_call_key_dtypes_and_shapes(void) {
    kv_store *store = open_store("local");
    float data[15] = {0};
    int64_t stored[] = {3, 5}, pushed[] = {3, 4}, fourteen[] = {14};
    kv_key key = 7, name = 0;
    kv_tensor value = kv_tensor_cpu(data, KV_F32, 2, stored);
    kv_tensor wrong = kv_tensor_cpu(data, KV_F32, 2, pushed);
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    CHECK_STATUS(kv_intern(store, "fc1.weight", &name), KV_OK);
    CHECK_STATUS(kv_init(store, &name, &value, 1), KV_OK);

    CHECK_STATUS(kv_push(store, &key, &wrong, 1, 0, NULL), KV_ERR_SHAPE_MISMATCH);
    CHECK(error_says("push"));
    CHECK(error_says("key 7"));
    CHECK(error_says("float32[3,4]"));
    CHECK(error_says("float32[3,5]"));
    CHECK_STATUS(kv_push(store, &name, &wrong, 1, 0, NULL), KV_ERR_SHAPE_MISMATCH);
    CHECK(error_says("\"fc1.weight\""));
    CHECK(error_says("float32[3,4]"));
    CHECK_STATUS(kv_pull(store, &name, &wrong, 1, 0, NULL), KV_ERR_SHAPE_MISMATCH);
    CHECK(error_says("pull"));
    CHECK(error_says("\"fc1.weight\""));

    wrong = kv_tensor_cpu(data, KV_I32, 2, stored);
    CHECK_STATUS(kv_pushpull(store, &key, &wrong, 1, NULL, NULL, 0, 0, NULL),
                 KV_ERR_DTYPE_MISMATCH);
    CHECK(error_says("pushpull"));
    CHECK(error_says("int32[3,5]"));
    CHECK(error_says("float32[3,5]"));
    wrong = kv_tensor_cpu(data, KV_BF16, 0, NULL);
    CHECK_STATUS(kv_push(store, &key, &wrong, 1, 0, NULL), KV_ERR_SHAPE_MISMATCH);
    CHECK(error_says("bfloat16[]"));
    wrong = kv_tensor_cpu(data, KV_U8, 1, fourteen);
    wrong.data = NULL;
    CHECK_STATUS(kv_push(store, &key, &wrong, 1, 0, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK(error_says("uint8[14]"));
    kv_free(store);
}

/* Each dtype by the name that people know. */
static void dtypes_have_names(void) {
    static const struct {
        kv_dtype dtype;
        const char *text;
    } names[] = {{KV_I8, "int8[1]"},     {KV_U8, "uint8[1]"},     {KV_I32, "int32[1]"},
                 {KV_I64, "int64[1]"},   {KV_F16, "float16[1]"},  {KV_BF16, "bfloat16[1]"},
                 {KV_F32, "float32[1]"}, {KV_F64, "float64[1]"}};
    kv_store *store = open_store("local");
    int64_t data[2] = {0}, one[] = {1}, two[] = {2};
    for (kv_key key = 0; key < 8; key++) {
        kv_tensor value = kv_tensor_cpu(data, names[key].dtype, 1, two);
        CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
        value.shape = one;
        CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL), KV_ERR_SHAPE_MISMATCH);
        CHECK(error_says(names[key].text));
    }
    kv_free(store);
}

/* A failure of an operation with a ticket is told on the thread that waits. */
static kv_status fail_with_text(void *context, kv_key key, const kv_tensor *input,
                                const kv_tensor *stored) {
    (void)context;
    (void)key;
    (void)input;
    (void)stored;
    kv_set_callback_error("the gradient is not finite");
    return KV_ERR_INVALID_ARGUMENT;
}

typedef struct waiter {
    kv_store *store;
    kv_ticket ticket;
} waiter;

static void *wait_and_read(void *context) {
    waiter *at = context;
    CHECK_STATUS(kv_wait(at->store, at->ticket, WAIT_MS), KV_ERR_CALLBACK);
    CHECK(error_says("push"));
    CHECK(error_says("\"fc1.weight\""));
    CHECK(error_says("the gradient is not finite"));
    return NULL;
}

static void failures_are_told_where_they_are_waited_for(void) {
    kv_store *store = open_store("local");
    int64_t number = 1;
    kv_key name = 0;
    pthread_t thread;
    CHECK_STATUS(kv_intern(store, "fc1.weight", &name), KV_OK);
    init_number(store, name, 0);
    CHECK_STATUS(kv_set_updater(store, fail_with_text, NULL, NULL), KV_OK);
    waiter at = {store, send_number(store, name, &number, 0)};
    CHECK(pthread_create(&thread, NULL, wait_and_read, &at) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    wait_and_read(&at);
    kv_free(store);
}

/* A name with any UTF-8 in it, quotes and line ends too, does not break the text. */
static void odd_names_stay_readable(void) {
    kv_store *store = open_store("local");
    int64_t number = 0;
    kv_tensor out = number_tensor(&number);
    kv_key name = 0;
    CHECK_STATUS(kv_intern(store, "a \"b\"\n\xc3\xa9", &name), KV_OK);
    CHECK_STATUS(kv_pull(store, &name, &out, 1, 0, NULL), KV_ERR_KEY_NOT_FOUND);
    CHECK(strchr(kv_last_error(), '\n') == NULL);
    CHECK(error_says("\xc3\xa9"));
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(5);
    CHECK(strcmp(kv_last_error(), "") == 0); /* before any call has failed */
    success_leaves_the_text();
    mismatches_name_call_key_dtypes_and_shapes();
    dtypes_have_names();
    failures_are_told_where_they_are_waited_for();
    each_thread_has_its_own_text();
    odd_names_stay_readable();
    return check_passed("api_last_error");
}
