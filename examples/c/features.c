/*
 * What training programs use beyond push and pull, in a store of one process. Each step prints one line,
 * "name: value"; the same calls serve a job of many machines.
 */
#include <kvstore.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "try.h"

enum { ELEMENTS = 3 };

/* All arrays but single numbers are of this shape. */
static int64_t shape[] = {ELEMENTS};

static kv_tensor floats(float *elements) {
    return kv_tensor_cpu(elements, KV_F32, 1, shape);
}

static void fill(float *elements, float value) {
    for (int i = 0; i < ELEMENTS; i++) {
        elements[i] = value;
    }
}

static kv_key named(kv_store *store, const char *name) {
    kv_key key = 0;
    TRY(kv_intern(store, name, &key));
    return key;
}

static void init(kv_store *store, kv_key key, float value) {
    float elements[ELEMENTS];
    fill(elements, value);
    const kv_tensor tensor = floats(elements);
    TRY(kv_init(store, &key, &tensor, 1));
}

static void push(kv_store *store, kv_key key, float value) {
    float elements[ELEMENTS];
    fill(elements, value);
    const kv_tensor tensor = floats(elements);
    TRY(kv_push(store, &key, &tensor, 1, 0, NULL));
}

/* Prints the value that all elements of a key have. */
static void show(const char *what, kv_store *store, kv_key key) {
    float elements[ELEMENTS];
    const kv_tensor out = floats(elements);
    TRY(kv_pull(store, &key, &out, 1, 0, NULL));
    printf("%s: %g\n", what, (double)elements[0]);
}

/* A program that is built against one release, and runs with another, asks before it calls. */
static void what_there_is(void) {
    printf("has tickets: %d\n", kv_capable("tickets"));
    printf("has telepathy: %d\n", kv_capable("telepathy"));
}

/* Runs on a thread of the library, before kv_close() and kv_free() return. */
static void tell(void *context, kv_ticket ticket, kv_status status) {
    kv_status *told = context;
    (void)ticket;
    *told = status;
}

/* The end of an operation comes to the program: as a call, or as a descriptor of an event loop. */
static void ends_of_operations(void) {
    kv_store *store = NULL;
    TRY(kv_create("local", NULL, &store));
    const kv_key key = named(store, "w");
    init(store, key, 0);

    float elements[ELEMENTS];
    fill(elements, 4);
    const kv_tensor value = floats(elements);
    kv_ticket ticket = 0;
    int32_t descriptor = -1;
    TRY(kv_event_fd(store, &descriptor));
    TRY(kv_push(store, &key, &value, 1, 0, &ticket));
    TRY(kv_watch(store, ticket));
    struct pollfd wanted = {.fd = descriptor, .events = POLLIN};
    if (poll(&wanted, 1, 10000) != 1) {
        fprintf(stderr, "the push has not ended\n");
        exit(EXIT_FAILURE);
    }
    kv_ticket ended = 0;
    kv_status status = KV_OK;
    TRY(kv_next_done(store, &ended, &status));
    printf("event: %s\n", ended == ticket && status == KV_OK ? "ok" : "failed");

    kv_status told = KV_ERR_TIMEOUT;
    TRY(kv_push(store, &key, &value, 1, 0, &ticket));
    TRY(kv_on_done(store, ticket, tell, &told, NULL));
    TRY(kv_close(store, 10000));
    printf("told: %s\n", told == KV_OK ? "ok" : "failed");
    kv_free(store);
}

/* Weights learn by a rule, and what is counted beside them is assigned. */
static void rules_of_keys(kv_store *store) {
    const kv_key weight = named(store, "w"), steps = named(store, "steps");
    int64_t count = 0;
    kv_tensor number = kv_tensor_cpu(&count, KV_I64, 0, NULL);
    init(store, weight, 2);
    TRY(kv_init(store, &steps, &number, 1));
    TRY(kv_set_optimizer_for(store, &steps, 1, "none", NULL));
    TRY(kv_set_optimizer(store, "sgd", "learning_rate=0.5"));
    push(store, weight, 1);
    count = 7;
    TRY(kv_push(store, &steps, &number, 1, 0, NULL));
    count = 0;
    TRY(kv_pull(store, &steps, &number, 1, 0, NULL));
    show("weight by sgd", store, weight);
    printf("steps: %d\n", (int)count);
}

/* A batch pushes the sum over its samples, and their number: the rule gets the mean over all batches. */
static void means(kv_store *store) {
    const kv_key weight = named(store, "w");
    TRY(kv_set_weight(store, 8));
    push(store, weight, 24);
    TRY(kv_clear_weight(store));
    kv_round round = {.struct_size = sizeof round};
    TRY(kv_last_round(store, weight, &round));
    show("weight by a mean", store, weight);
    printf("samples: %g\n", round.total_weight);
    printf("contributors: %d\n", (int)round.contributors);

    /* A worker without batches says so, and all go on together in the next epoch. */
    int32_t lost = -1;
    TRY(kv_done(store));
    TRY(kv_resume(store, 10000));
    TRY(kv_num_lost(store, &lost));
    printf("lost: %d\n", (int)lost);
}

/* Keys and arrays that are checked once: each later call costs little beside the bytes. */
static void bound_list(kv_store *store) {
    const kv_key weight = named(store, "w");
    float gradient[ELEMENTS], out[ELEMENTS];
    const kv_tensor value = floats(gradient), weights = floats(out);
    kv_bound *bound = NULL;
    TRY(kv_bind(store, &weight, &value, 1, &weight, &weights, 1, &bound));
    for (int step = 1; step <= 3; step++) {
        fill(gradient, (float)step);
        TRY(kv_bound_pushpull(bound, 0, NULL));
        printf("bound step %d: %g\n", step, (double)out[0]);
    }
    kv_bound_free(bound);
}

/* A mask is stored and given out; two of them have no sum. */
static void opaque_values(kv_store *store) {
    unsigned char bits[ELEMENTS] = {1, 0, 1};
    const kv_tensor tensor = kv_tensor_cpu(bits, KV_BOOL, 1, shape);
    const kv_tensor both[] = {tensor, tensor};
    const kv_key mask = named(store, "mask");
    const kv_key keys[] = {mask, mask};
    TRY(kv_set_optimizer_for(store, &mask, 1, "none", NULL));
    TRY(kv_init(store, &mask, &tensor, 1));
    memset(bits, 0, sizeof bits);
    TRY(kv_pull(store, &mask, &tensor, 1, 0, NULL));
    printf("mask: %d %d %d\n", bits[0], bits[1], bits[2]);
    const kv_status status = kv_push(store, keys, both, 2, 0, NULL);
    printf("two masks: %s\n", status == KV_ERR_UNSUPPORTED ? "unsupported" : "summed");
}

/* Takes the model's tensors without their prefix, and leaves the others out. */
static kv_status part_of_the_model(void *context, const char *tensor, const char **key) {
    (void)context;
    *key = strncmp(tensor, "model.", 6) == 0 ? tensor + 6 : NULL;
    return KV_OK;
}

/* A file of safetensors as another program writes it: length of the header, header, elements. */
static void write_model(const char *path) {
    static const char header[] =
        "{\"model.w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
        "\"head\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]}}";
    const float elements[] = {9, 9, 9, 1};
    unsigned char length[8] = {sizeof header - 1};
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(length, 1, sizeof length, file) != sizeof length ||
        fwrite(header, 1, sizeof header - 1, file) != sizeof header - 1 ||
        fwrite(elements, 1, sizeof elements, file) != sizeof elements || fclose(file) != 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
}

static void a_model_of_another_program(kv_store *store) {
    char path[] = "/tmp/model-XXXXXX";
    const int file = mkstemp(path);
    size_t before = 0, after = 0;
    if (file < 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    close(file);
    write_model(path);
    TRY(kv_keys(store, NULL, 0, &before));
    TRY(kv_load_values(store, path, part_of_the_model, NULL));
    TRY(kv_keys(store, NULL, 0, &after));
    unlink(path);
    show("loaded weight", store, named(store, "w"));
    printf("new keys: %d\n", (int)(after - before));
}

/* Values that workers add up without a key, and a group of workers with keys of its own. */
static void a_group(kv_store *store) {
    const int32_t rank = 0;
    float one[ELEMENTS], two[ELEMENTS], sum[ELEMENTS];
    const kv_tensor values[] = {floats(one), floats(two)}, out = floats(sum);
    kv_store *group = NULL;
    TRY(kv_group(store, "alone", &rank, 1, &group));
    init(group, named(group, "w"), 4);
    show("weight of the group", group, named(group, "w"));
    show("weight of the job", store, named(store, "w"));
    fill(one, 1);
    fill(two, 2);
    TRY(kv_allreduce(group, KV_SUM, values, 2, &out, 1, NULL));
    printf("sum of all: %g\n", sum[0]);
    TRY(kv_close(group, 10000));
    kv_free(group);
}

int main(void) {
    what_there_is();
    ends_of_operations();
    kv_store *store = NULL;
    TRY(kv_create("local", NULL, &store));
    rules_of_keys(store);
    means(store);
    bound_list(store);
    opaque_values(store);
    a_model_of_another_program(store);
    a_group(store);
    kv_free(store);
    return EXIT_SUCCESS;
}
