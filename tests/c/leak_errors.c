/* Memory of calls that fail: every kind of refusal, again and again. */
#include "files.h"
#include "leak.h"

static kv_store *store;
static const char *path;

static void bad_configs_and_types(void) {
    kv_config *config = NULL;
    kv_store *none = NULL;
    CHECK_STATUS(kv_config_create(&config), KV_OK);
    CHECK_STATUS(kv_config_set(config, "thread", "2"), KV_ERR_OPTION);
    CHECK_STATUS(kv_config_set(config, "threads", "many"), KV_ERR_OPTION);
    CHECK_STATUS(kv_config_set(config, "threads", "\xff"), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_create("remote", config, &none), KV_ERR_INVALID_ARGUMENT);
    /* With the distributed stores an option is missing. */
    kv_status status = kv_create("dist_sync", config, &none);
    CHECK(status == KV_ERR_OPTION || status == KV_ERR_UNSUPPORTED);
    CHECK_STATUS(kv_create(NULL, config, &none), KV_ERR_INVALID_ARGUMENT);
    kv_config_free(config);
    CHECK(setenv("KV_THREADS", "0", 1) == 0);
    CHECK_STATUS(kv_create("local", NULL, &none), KV_ERR_OPTION);
    CHECK(unsetenv("KV_THREADS") == 0);
}

static void bad_keys(void) {
    int64_t numbers[] = {1, 2};
    kv_tensor values[] = {number_tensor(&numbers[0]), number_tensor(&numbers[1])};
    kv_key known[] = {5, 1}, twice[] = {5, 5}, unknown[] = {1, 5}, key = 0;
    const char *name = NULL;
    size_t count = 0;
    CHECK_STATUS(kv_init(store, known, values, 2), KV_ERR_KEY_EXISTS);
    CHECK_STATUS(kv_init(store, twice, values, 2), KV_ERR_KEY_EXISTS);
    CHECK_STATUS(kv_broadcast(store, known, values, 2, known, values, 2, 0, NULL),
                 KV_ERR_KEY_EXISTS);
    CHECK_STATUS(kv_push(store, unknown, values, 2, 0, NULL), KV_ERR_KEY_NOT_FOUND);
    CHECK_STATUS(kv_pull(store, unknown, values, 2, 0, NULL), KV_ERR_KEY_NOT_FOUND);
    CHECK_STATUS(kv_remove(store, unknown, 2), KV_ERR_KEY_NOT_FOUND);
    CHECK_STATUS(kv_key_name(store, 1, &name), KV_ERR_KEY_NOT_FOUND);
    CHECK_STATUS(kv_key_info(store, 9, NULL, NULL, NULL, 0), KV_ERR_KEY_NOT_FOUND);
    CHECK_STATUS(kv_keys(store, &key, 0, &count), KV_ERR_BUFFER_TOO_SMALL);
    CHECK_STATUS(kv_intern(store, "dffpkeddlblkmhfa", &key), KV_OK);
    CHECK_STATUS(kv_intern(store, "pioccgceckckiifa", &key), KV_ERR_NAME_COLLISION);
}

static void bad_tensors(void) {
    int64_t numbers[] = {1, 2, 3, 4}, shape[] = {2}, huge[] = {(int64_t)1 << 60}, still[] = {0};
    kv_key keys[] = {1, 2}, fresh = 5;
    kv_ticket ticket = 0;
    kv_tensor value = number_tensor(&numbers[0]);
    kv_tensor wrong = kv_tensor_cpu(numbers, KV_I64, 1, shape);
    CHECK_STATUS(kv_push(store, keys, &wrong, 1, 0, NULL), KV_ERR_SHAPE_MISMATCH);
    CHECK_STATUS(kv_push(store, keys, &wrong, 1, 0, &ticket), KV_ERR_SHAPE_MISMATCH);
    wrong = kv_tensor_cpu(numbers, KV_F64, 0, NULL);
    CHECK_STATUS(kv_pull(store, keys, &wrong, 1, 0, NULL), KV_ERR_DTYPE_MISMATCH);
    CHECK_STATUS(kv_pushpull(store, keys, &value, 1, keys, &wrong, 1, 0, &ticket),
                 KV_ERR_DTYPE_MISMATCH);
    wrong = number_tensor(NULL);
    CHECK_STATUS(kv_push(store, keys, &wrong, 1, 0, NULL), KV_ERR_INVALID_ARGUMENT);
    wrong = value;
    wrong.device.type = 10; /* ROCm */
    CHECK_STATUS(kv_push(store, keys, &wrong, 1, 0, &ticket), KV_ERR_UNSUPPORTED);
    kv_tensor outs[] = {kv_tensor_cpu(numbers, KV_I64, 1, shape),
                        kv_tensor_cpu(numbers + 1, KV_I64, 1, shape)};
    kv_key pairs[] = {3, 3};
    CHECK_STATUS(kv_pull(store, pairs, outs, 2, 0, NULL), KV_ERR_OVERLAP);
    CHECK_STATUS(kv_pull(store, pairs, outs, 2, 0, &ticket), KV_ERR_OVERLAP);
    wrong = kv_tensor_cpu(numbers, KV_U8, 1, huge);
    wrong.strides = still;
    CHECK_STATUS(kv_init(store, &fresh, &wrong, 1), KV_ERR_OUT_OF_MEMORY);
}

static void bad_numbers(void) {
    char small[4];
    CHECK_STATUS(kv_wait(store, 0, 0), KV_ERR_TICKET);
    CHECK_STATUS(kv_cancel(store, 12345), KV_ERR_TICKET);
    CHECK_STATUS(kv_wait_all(store, -2), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_barrier(store, -2), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_serve(store), KV_ERR_ROLE);
    CHECK_STATUS(kv_close(store, -2), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_stats(store, small, sizeof small, NULL), KV_ERR_BUFFER_TOO_SMALL);
    CHECK_STATUS(kv_set_logger(99, NULL, malloc(24), free), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_set_updater(NULL, add_number, malloc(24), free), KV_ERR_INVALID_ARGUMENT);
}

static void bad_files(void) {
    static const unsigned char cut[] = {200, 0, 0, 0, 0, 0, 0, 0, '{', '"'};
    static const unsigned char foreign[] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    CHECK_STATUS(kv_load(store, "no/such/file"), KV_ERR_IO);
    CHECK_STATUS(kv_save(store, "no/such/folder"), KV_ERR_IO);
    write_file(path, cut, sizeof cut);
    CHECK_STATUS(kv_load(store, path), KV_ERR_CORRUPT);
    write_file(path, foreign, sizeof foreign);
    CHECK_STATUS(kv_load(store, path), KV_ERR_UNSUPPORTED);
    CHECK_STATUS(kv_save(store, path), KV_OK);
    CHECK_STATUS(kv_load(store, path), KV_OK);
    CHECK(truncate(path, 500) == 0);
    CHECK_STATUS(kv_load(store, path), KV_ERR_CORRUPT);
}

static kv_status fail_inside(void *context, kv_key key, const kv_tensor *input,
                             const kv_tensor *stored) {
    (void)input;
    (void)stored;
    CHECK_STATUS(push_number(context, key, 1), KV_ERR_REENTRANT);
    CHECK_STATUS(kv_set_updater(context, add_number, malloc(24), free), KV_ERR_REENTRANT);
    kv_set_callback_error("a text that is long enough to need memory of its own");
    return KV_ERR_UNSUPPORTED;
}

static void failing_updaters(void) {
    CHECK_STATUS(kv_set_updater(store, fail_inside, store, NULL), KV_OK);
    CHECK_STATUS(push_number(store, 1, 1), KV_ERR_CALLBACK);
    CHECK_STATUS(kv_set_updater(store, NULL, NULL, NULL), KV_OK);
}

static void closed_stores(void) {
    kv_store *closed = open_store("local"), *aborted = open_store("device");
    init_number(closed, 1, 0);
    CHECK_STATUS(kv_close(closed, 0), KV_OK);
    CHECK_STATUS(push_number(closed, 1, 1), KV_ERR_CLOSED);
    CHECK_STATUS(kv_set_updater(closed, add_number, malloc(24), free), KV_ERR_CLOSED);
    kv_abort(aborted);
    CHECK_STATUS(push_number(aborted, 1, 1), KV_ERR_CLOSED);
    kv_free(closed);
    kv_free(aborted);
}

/* A request that cannot be met gives NULL under AddressSanitizer too, as malloc says. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

int main(void) {
    alarm_after_minutes(10);
    long rounds = scaled(4000, 40);
    int64_t numbers[] = {0, 0}, shape[] = {2};
    kv_key key = 3;
    kv_tensor pair = kv_tensor_cpu(numbers, KV_I64, 1, shape);
    store = open_store("local");
    path = new_folder("file");
    init_number(store, 1, 0);
    init_number(store, 2, 0);
    CHECK_STATUS(kv_init(store, &key, &pair, 1), KV_OK);
    check_no_growth(bad_configs_and_types, rounds);
    check_no_growth(bad_keys, rounds);
    check_no_growth(bad_tensors, rounds);
    check_no_growth(bad_numbers, rounds);
    check_no_growth(bad_files, rounds / 10);
    CHECK(unlink(path) == 0);
    remove_folder();
    check_no_growth(failing_updaters, rounds);
    check_no_growth(closed_stores, rounds);
    kv_free(store);
    return check_passed("leak_errors");
}
