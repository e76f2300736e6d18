/*
 * The tutorial on four GPUs prints what it prints in host memory: examples/c/tutorial.c with the tensors
 * of "device" i copied to GPU i, which has a stream of its own, and its results copied back.
 */
#include "support.h"

#include "gpu.h"

#include <stdarg.h>

enum { GPUS = 4, BYTES = 24, MOST_PAIRS = 12 };

static void *streams[GPUS];

/* What has been printed. */
static char page[1000];

/* Whether the store is one of the type `device`, whose keys stay on the GPU of their first value. */
static int keeps_values;

static void print(const char *format, ...) {
    const size_t used = strlen(page);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(page + used, sizeof page - used, format, arguments);
    va_end(arguments);
}

/* Sets the tensors of GPUs with the content of some in host memory: one array for each of theirs. */
static void copy_to_gpus(kv_tensor there[MOST_PAIRS], const kv_tensor *here, size_t count) {
    CHECK(count <= MOST_PAIRS);
    for (size_t i = 0; i < count; i++) {
        const int32_t id = here[i].device.id;
        size_t first = 0;
        while (here[first].data != here[i].data) {
            first++;
        }
        there[i] = here[i];
        there[i].device.type = KV_CUDA;
        if (first < i) {
            there[i].data = there[first].data;
            continue;
        }
        gpu_enter(id);
        there[i].data = gpu_allocate(BYTES);
        gpu_write(there[i].data, here[i].data, BYTES, streams[id]);
    }
}

static kv_status create(const char *type, const kv_config *config, kv_store **store) {
    keeps_values = strcmp(type, "device") == 0;
    return kv_create(type, config, store);
}

static kv_status init(kv_store *store, const kv_key *keys, const kv_tensor *values, size_t count) {
    kv_tensor there[MOST_PAIRS];
    copy_to_gpus(there, values, count);
    const kv_status status = kv_init(store, keys, there, count);
    for (size_t i = 0; status == KV_OK && keeps_values && i < count; i++) {
        kv_device device = {0, 0};
        CHECK_STATUS(kv_key_device(store, keys[i], &device), KV_OK);
        CHECK(device.type == KV_CUDA && device.id == values[i].device.id);
    }
    return status;
}

static kv_status push(kv_store *store, const kv_key *keys, const kv_tensor *values, size_t count,
                      int32_t priority, kv_ticket *ticket) {
    kv_tensor there[MOST_PAIRS];
    copy_to_gpus(there, values, count);
    return kv_push(store, keys, there, count, priority, ticket);
}

static kv_status pull(kv_store *store, const kv_key *keys, const kv_tensor *outs, size_t count,
                      int32_t priority, kv_ticket *ticket) {
    kv_tensor there[MOST_PAIRS];
    copy_to_gpus(there, outs, count);
    const kv_status status = kv_pull(store, keys, there, count, priority, ticket);
    for (size_t i = 0; status == KV_OK && i < count; i++) {
        gpu_enter(outs[i].device.id);
        gpu_read(outs[i].data, there[i].data, BYTES, streams[outs[i].device.id]);
    }
    return status;
}

#define kv_create create
#define kv_init init
#define kv_push push
#define kv_pull pull
#define printf print
#define main run_tutorial
#include "../../examples/c/tutorial.c"
#undef main
#undef printf

/* Starts the devices with a stream of each; without CUDA in the library the test is skipped. */
static void start(void) {
    for (int i = 0; i < GPUS; i++) {
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
    CHECK(run_tutorial() == EXIT_SUCCESS);
    read_golden(golden, sizeof golden);
    if (strcmp(page, golden) != 0) {
        fprintf(stderr, "another text:\n%s", page);
        return 1;
    }
    return check_passed("api_tutorial_devices");
}
