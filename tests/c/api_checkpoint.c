/* kv_save, kv_load, kv_load_values: what comes back, what is refused, and what a full disk does. */
#define _GNU_SOURCE
#include "files.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { COUNT = 100000 };

static const char *path;

static void init_floats(kv_store *store, kv_key key, float first) {
    static float data[COUNT];
    int64_t shape[] = {COUNT};
    kv_tensor value = kv_tensor_cpu(data, KV_F32, 1, shape);
    for (int i = 0; i < COUNT; i++) {
        data[i] = first + (float)i;
    }
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
}

static void push_ones(kv_store *store, kv_key key) {
    static float data[COUNT];
    int64_t shape[] = {COUNT};
    kv_tensor value = kv_tensor_cpu(data, KV_F32, 1, shape);
    for (int i = 0; i < COUNT; i++) {
        data[i] = 1;
    }
    CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL), KV_OK);
}

/* A key, as its bits. */
static float *pull_floats(kv_store *store, kv_key key) {
    int64_t shape[] = {COUNT};
    float *data = malloc(COUNT * sizeof *data);
    CHECK(data != NULL);
    kv_tensor out = kv_tensor_cpu(data, KV_F32, 1, shape);
    CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
    return data;
}

static int equal_floats(kv_store *one, kv_store *other, kv_key key) {
    float *a = pull_floats(one, key), *b = pull_floats(other, key);
    int equal = memcmp(a, b, COUNT * sizeof *a) == 0;
    free(a);
    free(b);
    return equal;
}

static void training_goes_on_as_if_it_had_not_stopped(const char *type) {
    kv_store *straight = open_store(type), *resumed = open_store(type);
    kv_key name = 0, keys[2] = {0, 0};
    const char *text = NULL;
    size_t count = 0;
    CHECK_STATUS(kv_intern(straight, "weight", &name), KV_OK);
    init_floats(straight, name, 0.5f);
    init_floats(straight, 7, -3);
    CHECK_STATUS(kv_set_optimizer(straight, "adam", "learning_rate=0.3,wd=0.01"), KV_OK);
    CHECK_STATUS(kv_set_key_hyperparameter(straight, 7, "lr_mult", 0.1), KV_OK);
    push_ones(straight, name);
    push_ones(straight, 7);
    CHECK_STATUS(kv_save(straight, path), KV_OK);
    CHECK_STATUS(kv_load(resumed, path), KV_OK);
    CHECK_STATUS(kv_keys(resumed, keys, 2, &count), KV_OK);
    CHECK(count == 2 && keys[0] == 7 && keys[1] == name);
    CHECK_STATUS(kv_key_name(resumed, name, &text), KV_OK);
    CHECK(strcmp(text, "weight") == 0);
    for (int i = 0; i < 3; i++) {
        CHECK(equal_floats(straight, resumed, name));
        CHECK(equal_floats(straight, resumed, 7));
        push_ones(straight, name), push_ones(straight, 7);
        push_ones(resumed, name), push_ones(resumed, 7);
    }
    CHECK(count_files() == 1);
    kv_free(straight);
    kv_free(resumed);
}

static void a_refused_file_changes_nothing(const char *type) {
    kv_store *store = open_store(type);
    int64_t shape[] = {1};
    float number = 1;
    kv_key key = 1;
    kv_tensor value = kv_tensor_cpu(&number, KV_F32, 1, shape);
    size_t size = 0;
    init_number(store, 1, 10);
    CHECK_STATUS(kv_save(store, path), KV_OK);
    unsigned char *bytes = read_file(path, &size);
    CHECK_STATUS(kv_remove(store, &key, 1), KV_OK);
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    CHECK_STATUS(kv_load(store, path), KV_ERR_DTYPE_MISMATCH);
    CHECK(error_says("key 1 is int64[] in the file, float32[1] in the store"));
    init_number(store, 2, 20);
    write_file(path, bytes, size - 1);
    CHECK_STATUS(kv_load(store, path), KV_ERR_CORRUPT);
    CHECK(error_says("cut off") && error_says(path));
    bytes[size - 12] ^= 4; /* of the value, before the checksums of header and value */
    write_file(path, bytes, size);
    CHECK_STATUS(kv_load(store, path), KV_ERR_CORRUPT);
    CHECK(error_says("the bytes of tensor \"#1\" are altered"));
    CHECK_STATUS(kv_load(store, folder_path), KV_ERR_IO);
    CHECK_STATUS(kv_load(store, "no/such/file"), KV_ERR_IO);
    CHECK(error_says("no/such/file") && error_says("No such file or directory"));
    CHECK_STATUS(kv_save(store, "no/such/folder/file"), KV_ERR_IO);
    CHECK(error_says("no/such/folder/file") && error_says("No such file or directory"));
    CHECK(pull_number(store, 2) == 20);
    free(bytes);
    kv_free(store);
}

/* Not UTF-8: a path is what the system takes. */
static void a_path_is_bytes(void) {
    kv_store *store = open_store("local"), *other = open_store("local");
    char odd[300];
    snprintf(odd, sizeof odd, "%s/\xff\xfe", folder_path);
    init_number(store, 1, 10);
    CHECK_STATUS(kv_save(store, odd), KV_OK);
    CHECK_STATUS(kv_load(other, odd), KV_OK);
    CHECK(pull_number(other, 1) == 10);
    CHECK(unlink(odd) == 0);
    kv_free(store);
    kv_free(other);
}

/* What a namer of keys does, and how often it was called. */
typedef struct naming {
    kv_store *store;
    char name[64];
    int calls;
} naming;

/* Takes "model." off, leaves "head" out, and fails for what it does not know. */
static kv_status name_key(void *context, const char *tensor, const char **key) {
    naming *at = context;
    CHECK(*key == tensor);
    at->calls++;
    CHECK_STATUS(kv_barrier(at->store, 0), KV_ERR_REENTRANT);
    if (strcmp(tensor, "head") == 0) {
        *key = NULL;
        return KV_OK;
    }
    if (strncmp(tensor, "model.", 6) != 0) {
        kv_set_callback_error("it is no part of the model");
        return KV_ERR_IO;
    }
    snprintf(at->name, sizeof at->name, "%s", tensor + 6);
    *key = at->name;
    return KV_OK;
}

static kv_status one_name(void *context, const char *tensor, const char **key) {
    (void)tensor;
    *key = context;
    return KV_OK;
}

/* A file of three floats, as another program would write it. */
static void write_foreign(const char *first, const char *second, const char *third) {
    const float data[] = {1.5f, -2, 3};
    unsigned char bytes[512] = {0};
    int length = snprintf((char *)bytes + 8, sizeof bytes - 8,
                          "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                          "\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]},"
                          "\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
                          first, second, third);
    bytes[0] = (unsigned char)length;
    bytes[1] = (unsigned char)(length >> 8);
    memcpy(bytes + 8 + length, data, sizeof data);
    write_file(path, bytes, 8 + (size_t)length + sizeof data);
}

static float pull_float(kv_store *store, const char *name) {
    float number = 0;
    int64_t shape[] = {1};
    kv_tensor out = kv_tensor_cpu(&number, KV_F32, 1, shape);
    kv_key key = 0;
    CHECK_STATUS(kv_intern(store, name, &key), KV_OK);
    CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
    return number;
}

static void values_are_loaded_for_the_keys_that_a_function_names(const char *type) {
    kv_store *store = open_store(type);
    naming at = {store, "", 0};
    size_t count = 9;
    write_foreign("model.b", "head", "model.a");
    CHECK_STATUS(kv_load_values(store, path, name_key, &at), KV_OK);
    CHECK(at.calls == 3);
    CHECK(pull_float(store, "b") == 1.5f && pull_float(store, "a") == 3);
    CHECK_STATUS(kv_keys(store, NULL, 0, &count), KV_OK);
    CHECK(count == 2);
    CHECK_STATUS(kv_load_values(store, path, same_name, NULL), KV_OK);
    CHECK(pull_float(store, "head") == -2 && pull_float(store, "model.b") == 1.5f);

    write_foreign("model.b", "other", "model.c");
    CHECK_STATUS(kv_load_values(store, path, name_key, &at), KV_ERR_CALLBACK);
    CHECK(error_says("tensor \"other\"") && error_says("it is no part of the model"));
    CHECK(error_says(path));
    CHECK_STATUS(kv_load_values(store, path, one_name, "same"), KV_ERR_INVALID_ARGUMENT);
    CHECK(error_says("\"model.b\" and \"other\"") && error_says("\"same\""));
    CHECK_STATUS(kv_load_values(store, path, one_name, "\xff"), KV_ERR_CALLBACK);
    CHECK(error_says("UTF-8"));
    CHECK_STATUS(kv_load_values(store, "no/such/file", name_key, &at), KV_ERR_IO);
    CHECK_STATUS(kv_keys(store, NULL, 0, &count), KV_OK);
    CHECK(count == 5 && pull_float(store, "b") == 1.5f);

    CHECK_STATUS(kv_save(store, path), KV_OK);
    CHECK_STATUS(kv_load_values(store, path, same_name, NULL), KV_ERR_UNSUPPORTED);
    CHECK(error_says("checkpoint"));
    kv_free(store);
}

/* Runs `work` in a child, which must end well. */
static void in_child(void (*work)(void)) {
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm_after_minutes(1);
        work();
        fflush(NULL);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Saves a small store, then one that does not fit any more: the first file stays. */
static void a_large_save_fails(const char *file, const char *reason, void (*make_small)(void)) {
    kv_store *small = open_store("local"), *large = open_store("local");
    size_t size = 0;
    init_number(small, 1, 10);
    for (kv_key key = 0; key < 8; key++) {
        init_floats(large, key, 1);
    }
    CHECK_STATUS(kv_save(small, file), KV_OK);
    unsigned char *bytes = read_file(file, &size);
    make_small();
    int before = count_files();
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(kv_save(large, file), KV_ERR_IO);
        CHECK(error_says(file) && error_says(reason));
        check_file(file, bytes, size);
        CHECK(count_files() == before);
    }
    CHECK_STATUS(kv_save(small, file), KV_OK);
    CHECK_STATUS(kv_load(large, file), KV_ERR_DTYPE_MISMATCH);
    free(bytes);
    kv_free(small);
    kv_free(large);
}

static void limit_files(void) {
    struct rlimit limit = {1 << 20, 1 << 20};
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static void with_a_limit_of_files(void) {
    a_large_save_fails(path, "File too large", limit_files);
}

static int write_text(const char *file, const char *text) {
    int out = open(file, O_WRONLY);
    int written = out >= 0 && write(out, text, strlen(text)) == (ssize_t)strlen(text);
    return out >= 0 && close(out) == 0 && written;
}

/* Mounts a disk of 1 MiB over the folder, for this process alone; gives whether it may. */
static int mount_small_disk(void) {
    char user[64], group[64];
    snprintf(user, sizeof user, "0 %d 1", (int)getuid());
    snprintf(group, sizeof group, "0 %d 1", (int)getgid());
    if (unshare(CLONE_NEWNS) != 0 &&
        (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !write_text("/proc/self/setgroups", "deny") ||
         !write_text("/proc/self/uid_map", user) || !write_text("/proc/self/gid_map", group))) {
        return 0;
    }
    return mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", folder_path, "tmpfs", 0, "size=1m") == 0;
}

static void nothing_more(void) {}

static void with_a_full_disk(void) {
    if (!mount_small_disk()) {
        puts("api_checkpoint: no full disk, this process may not mount one");
        return;
    }
    a_large_save_fails(path, "No space left on device", nothing_more);
}

int main(void) {
    alarm_after_minutes(5);
    path = new_folder("file");
    in_child(with_a_full_disk);
    in_child(with_a_limit_of_files);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        training_goes_on_as_if_it_had_not_stopped(STORE_TYPES[i]);
        a_refused_file_changes_nothing(STORE_TYPES[i]);
    }
    a_path_is_bytes();
    values_are_loaded_for_the_keys_that_a_function_names("local");
    values_are_loaded_for_the_keys_that_a_function_names("device");
    CHECK(unlink(path) == 0);
    remove_folder();
    return check_passed("api_checkpoint");
}
