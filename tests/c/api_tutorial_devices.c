/*
 * The tutorial on four GPUs prints what it prints in host memory. "Device" i of examples/c/tutorial.c
 * is GPU i here, with a stream of its own.
 */
#include "support.h"

#include "gpu.h"

enum { DEVICES = 4, ELEMENTS = 6, BYTES = ELEMENTS * 4, MOST_PAIRS = 12, MOST_CALLS = 8 };

static int64_t shape[] = {2, 3};
static void *streams[DEVICES];

/* What has been printed. */
static char page[1000];

static void print(const char *format, const char *name, double value) {
    const size_t used = strlen(page);
    snprintf(page + used, sizeof page - used, format, name, value);
}

/* An array on each of some devices. */
struct arrays {
    int count;
    kv_tensor tensors[DEVICES];
};

static struct arrays full(int count, float value) {
    struct arrays arrays = {.count = count};
    float elements[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) {
        elements[i] = value;
    }
    for (int i = 0; i < count; i++) {
        gpu_enter(i);
        arrays.tensors[i] = kv_tensor_cpu(gpu_allocate(BYTES), KV_F32, 2, shape);
        arrays.tensors[i].device.type = KV_CUDA;
        arrays.tensors[i].device.id = i;
        gpu_write(arrays.tensors[i].data, elements, BYTES, streams[i]);
    }
    return arrays;
}

/* Prints the value that all elements of all arrays have. */
static void show(const char *name, const struct arrays *arrays) {
    float first = 0;
    for (int i = 0; i < arrays->count; i++) {
        float elements[ELEMENTS];
        gpu_enter(i);
        gpu_read(elements, arrays->tensors[i].data, BYTES, streams[i]);
        first = i == 0 ? elements[0] : first;
        for (int j = 0; j < ELEMENTS; j++) {
            CHECK(elements[j] == first);
        }
    }
    print("%s: %g\n", name, (double)first);
}

/* All pairs of some keys and the tensors of some devices. */
static size_t pair(const kv_key *keys, size_t key_count, const struct arrays *arrays,
                   kv_key all_keys[MOST_PAIRS], kv_tensor tensors[MOST_PAIRS]) {
    size_t count = 0;
    for (size_t i = 0; i < key_count; i++) {
        for (int j = 0; j < arrays->count; j++, count++) {
            all_keys[count] = keys[i];
            tensors[count] = arrays->tensors[j];
        }
    }
    return count;
}

static void push(kv_store *store, const kv_key *keys, size_t key_count, struct arrays values) {
    kv_key all[MOST_PAIRS];
    kv_tensor tensors[MOST_PAIRS];
    const size_t count = pair(keys, key_count, &values, all, tensors);
    CHECK_STATUS(kv_push(store, all, tensors, count, 0, NULL), KV_OK);
}

static void pull(kv_store *store, const kv_key *keys, size_t key_count, struct arrays outs,
                 const char *name) {
    kv_key all[MOST_PAIRS];
    kv_tensor tensors[MOST_PAIRS];
    const size_t count = pair(keys, key_count, &outs, all, tensors);
    CHECK_STATUS(kv_pull(store, all, tensors, count, 0, NULL), KV_OK);
    show(name, &outs);
}

/* The context of the updater. */
struct scaling {
    float factor;
    int calls;
    kv_key keys[MOST_CALLS];
};

static kv_status add_scaled(void *context, kv_key key, const kv_tensor *input,
                            const kv_tensor *stored) {
    struct scaling *scaling = context;
    const float *sum = input->data;
    float *value = stored->data;
    if (scaling->calls == MOST_CALLS) {
        return KV_ERR_CALLBACK;
    }
    scaling->keys[scaling->calls++] = key;
    for (int i = 0; i < ELEMENTS; i++) {
        value[i] += scaling->factor * sum[i];
    }
    return KV_OK;
}

static void first(void) {
    static const kv_key key = 3, keys[] = {5, 7, 9};
    struct scaling scaling = {.factor = 2};
    struct arrays arrays = full(1, 2);
    kv_store *store = open_store("local");
    CHECK_STATUS(kv_init(store, &key, arrays.tensors, 1), KV_OK);
    pull(store, &key, 1, full(1, 0), "init");
    push(store, &key, 1, full(1, 8));
    pull(store, &key, 1, full(1, 0), "push");
    push(store, &key, 1, full(DEVICES, 1));
    pull(store, &key, 1, full(1, 0), "four devices");
    CHECK_STATUS(kv_set_updater(store, add_scaled, &scaling, NULL), KV_OK);
    pull(store, &key, 1, full(1, 0), "updater set");
    push(store, &key, 1, full(1, 1));
    pull(store, &key, 1, full(1, 0), "updater push");
    print("%s: %g\n", "updater calls", scaling.calls);
    print("%s: %g\n", "updater key", (double)scaling.keys[0]);
    pull(store, &key, 1, full(DEVICES, 0), "four outs");

    arrays = full(3, 1);
    scaling.calls = 0;
    CHECK_STATUS(kv_init(store, keys, arrays.tensors, 3), KV_OK);
    CHECK_STATUS(kv_push(store, keys, arrays.tensors, 3, 0, NULL), KV_OK);
    CHECK_STATUS(kv_pull(store, keys, arrays.tensors, 3, 0, NULL), KV_OK);
    show("keys 5 7 9", &arrays);
    print("%s:", "updater order", 0);
    for (int i = 0; i < scaling.calls; i++) {
        print("%s%g", " ", (double)scaling.keys[i]);
    }
    print("%s", "\n", 0);
    pull(store, keys, 3, full(1, 0), "one out of three keys");
    push(store, keys, 3, full(DEVICES, 1));
    pull(store, keys, 3, full(DEVICES, 0), "list of lists");
    kv_free(store);
}

static void second(void) {
    static const kv_key key = 3, keys[] = {7, 11, 13, 17};
    struct scaling scaling = {.factor = 0.01F};
    struct arrays arrays = full(1, -2);
    kv_store *store = open_store("device");
    CHECK_STATUS(kv_init(store, &key, arrays.tensors, 1), KV_OK);
    pull(store, &key, 1, full(1, 0), "device init");
    push(store, &key, 1, full(1, -7));
    pull(store, &key, 1, full(1, 0), "device push");
    push(store, &key, 1, full(3, 1));
    pull(store, &key, 1, full(1, 0), "device three ones");

    arrays = full(DEVICES, -3);
    CHECK_STATUS(kv_init(store, keys, arrays.tensors, DEVICES), KV_OK);
    for (int i = 0; i < DEVICES; i++) {
        kv_device device = {0, 0};
        CHECK_STATUS(kv_key_device(store, keys[i], &device), KV_OK);
        CHECK(device.type == KV_CUDA && device.id == i);
    }
    CHECK_STATUS(kv_pull(store, keys, arrays.tensors, DEVICES, 0, NULL), KV_OK);
    show("device keys", &arrays);
    push(store, keys, DEVICES, full(3, -0.1F));
    CHECK_STATUS(kv_pull(store, keys, arrays.tensors, DEVICES, 0, NULL), KV_OK);
    show("device multi push", &arrays);
    CHECK_STATUS(kv_set_updater(store, add_scaled, &scaling, NULL), KV_OK);
    pull(store, &key, 1, full(1, 0), "device updater set");
    push(store, &key, 1, full(1, 5));
    pull(store, &key, 1, full(1, 0), "device updater push");
    kv_free(store);
}

/* Starts the devices with a stream of each; without CUDA in the library the test is skipped. */
static void start(void) {
    for (int i = 0; i < DEVICES; i++) {
        const kv_device device = {KV_CUDA, i};
        gpu_enter(i);
        streams[i] = gpu_stream();
        const kv_status status = kv_set_stream(device, streams[i]);
        if (status == KV_ERR_UNSUPPORTED) {
            fprintf(stderr, "skipped: %s\n", kv_last_error());
            exit(GPU_SKIPPED);
        }
        CHECK_STATUS(status, KV_OK);
    }
}

/* The text beside this file's folder. */
static void read_golden(char *text, size_t room) {
    static const char here[] = __FILE__;
    char path[sizeof here + 64];
    const int folder = (int)(strrchr(here, '/') - here);
    snprintf(path, sizeof path, "%.*s/../golden/tutorial.txt", folder, here);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    text[fread(text, 1, room - 1, file)] = '\0';
    CHECK(fclose(file) == 0);
}

int main(void) {
    char golden[sizeof page];
    start();
    first();
    second();
    read_golden(golden, sizeof golden);
    if (strcmp(page, golden) != 0) {
        fprintf(stderr, "another text:\n%s", page);
        return 1;
    }
    return check_passed("api_tutorial_devices");
}
