/*
 * What training programs use beyond push and pull, in one process or in a job of many. Only the type differs:
 *
 *   features                   one process, the only worker
 *   features dist_sync         a worker of a job; `kvstore run` starts them all, and the servers:
 *                              kvstore run -n 2 -s 1 -- features dist_sync
 *
 * All workers make the same calls, with values that depend on their rank. Rank 0 prints "name: value" for each
 * result.
 */
#include <kvstore.h>
#include <poll.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "try.h"

enum { ELEMENTS = 3, MOST_WORKERS = 16, WAIT_MS = 60000 };

/* The place of this process among the workers, and their number: 0 of 1 in a store of one process. */
static int32_t rank, workers;

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

/* Prints on rank 0: the other workers have the same values. */
static void report(const char *format, ...) {
    va_list values;
    va_start(values, format);
    if (rank == 0) {
        vprintf(format, values);
    }
    va_end(values);
}

/* Prints the first element of a key. Here as elsewhere all workers make the call. */
static void show(const char *what, kv_store *store, kv_key key) {
    float elements[ELEMENTS];
    const kv_tensor out = floats(elements);
    TRY(kv_pull(store, &key, &out, 1, 0, NULL));
    report("%s: %g\n", what, (double)elements[0]);
}

/* A program that is built against one release, and runs with another, asks before it calls. */
static void what_there_is(void) {
    report("has tickets: %d\n", kv_capable("tickets"));
    report("has telepathy: %d\n", kv_capable("telepathy"));
}

/* How an operation has ended. */
struct end {
    sem_t known;
    kv_status status;
};

/* Runs on a thread of the library. */
static void tell(void *context, kv_ticket ticket, kv_status status) {
    struct end *end = context;
    (void)ticket;
    end->status = status;
    sem_post(&end->known);
}

/* The end of an operation comes to the program: as a descriptor of an event loop, or as a call. */
static void ends_of_operations(kv_store *store) {
    const kv_key key = named(store, "first");
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
    if (poll(&wanted, 1, WAIT_MS) != 1) {
        fprintf(stderr, "the push has not ended\n");
        exit(EXIT_FAILURE);
    }
    kv_ticket ended = 0;
    kv_status status = KV_OK;
    TRY(kv_next_done(store, &ended, &status));
    report("event: %s\n", ended == ticket && status == KV_OK ? "ok" : "failed");

    struct end end = {.status = KV_ERR_TIMEOUT};
    sem_init(&end.known, 0, 0);
    TRY(kv_push(store, &key, &value, 1, 0, &ticket));
    TRY(kv_on_done(store, ticket, tell, &end, NULL));
    sem_wait(&end.known);
    report("told: %s\n", end.status == KV_OK ? "ok" : "failed");
    sem_destroy(&end.known);
}

/* Weights learn by a rule. What is counted beside them is assigned: the sum over the workers. */
static void rules_of_keys(kv_store *store) {
    const kv_key weight = named(store, "w"), steps = named(store, "steps");
    int64_t count = 0;
    kv_tensor number = kv_tensor_cpu(&count, KV_I64, 0, NULL);
    init(store, weight, 2);
    TRY(kv_init(store, &steps, &number, 1));
    TRY(kv_set_optimizer_for(store, &steps, 1, "none", NULL));
    TRY(kv_set_optimizer(store, "sgd", "learning_rate=0.5"));
    push(store, weight, (float)(rank + 1));
    count = 7;
    TRY(kv_push(store, &steps, &number, 1, 0, NULL));
    count = 0;
    TRY(kv_pull(store, &steps, &number, 1, 0, NULL));
    show("weight by sgd", store, weight);
    report("steps: %d\n", (int)count);
}

/* A batch pushes the sum over its samples, and their number: the rule gets the mean over all batches. */
static void means(kv_store *store) {
    const kv_key weight = named(store, "w");
    TRY(kv_set_weight(store, 8 * (rank + 1))); /* batches of 8 samples, 16 samples, ... */
    push(store, weight, 24);
    TRY(kv_clear_weight(store));
    kv_round round = {.struct_size = sizeof round};
    TRY(kv_last_round(store, weight, &round));
    show("weight by a mean", store, weight);
    report("samples: %g\n", round.total_weight);
    report("contributors: %d\n", (int)round.contributors);
}

/* Rank 0 has a batch more than the others. Rounds do not wait for workers that are done. */
static void unequal_epochs(kv_store *store) {
    const kv_key weight = named(store, "w");
    int32_t lost = -1;
    if (rank == 0) {
        push(store, weight, 1);
    }
    TRY(kv_done(store));
    TRY(kv_resume(store, WAIT_MS)); /* all go on together, in the next epoch */
    show("weight of the epoch", store, weight);
    TRY(kv_num_lost(store, &lost));
    report("lost: %d\n", (int)lost);
}

/* Keys and arrays that are checked once: each later call costs little beside the bytes. */
static void bound_list(kv_store *store) {
    const kv_key weight = named(store, "w");
    float gradient[ELEMENTS], out[ELEMENTS];
    const kv_tensor value = floats(gradient), weights = floats(out);
    kv_bound *bound = NULL;
    TRY(kv_bind(store, &weight, &value, 1, &weight, &weights, 1, &bound));
    for (int step = 1; step <= 3; step++) {
        fill(gradient, (float)(step * (rank + 1)));
        TRY(kv_bound_pushpull(bound, 0, NULL));
        report("bound step %d: %g\n", step, (double)out[0]);
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
    report("mask: %d %d %d\n", bits[0], bits[1], bits[2]);
    const kv_status status = kv_push(store, keys, both, 2, 0, NULL);
    report("two masks: %s\n", status == KV_ERR_UNSUPPORTED ? "unsupported" : "summed");
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

/* All workers load together: the file of rank 0. */
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
    report("new keys: %d\n", (int)(after - before));
}

/* Gradients of a large norm are scaled down. The norm is that of the sums over the workers. */
static void clipping(kv_store *store) {
    const kv_key weight = named(store, "w");
    const float scale = (float)(rank + 1);
    float gradient[ELEMENTS] = {3 * scale, 4 * scale, 0};
    const kv_tensor value = floats(gradient);
    double norm = 0;
    uint64_t skips = 0;
    TRY(kv_set_clipping(store, 2.5, 0));
    TRY(kv_push(store, &weight, &value, 1, 0, NULL));
    TRY(kv_last_norm(store, &norm, &skips));
    report("norm: %g\n", norm);
    show("weight by a clipped step", store, weight);
    TRY(kv_set_clipping(store, 0, 0));
    TRY(kv_push(store, &weight, &value, 1, 0, NULL));
    show("weight by a full step", store, weight);
}

/* A group of workers, here of all, has keys and rules of its own. */
static void a_group(kv_store *store) {
    int32_t ranks[MOST_WORKERS];
    for (int32_t i = 0; i < workers; i++) {
        ranks[i] = i;
    }
    kv_store *group = NULL;
    TRY(kv_group(store, "all", ranks, (size_t)workers, &group));
    const kv_key weight = named(group, "w");
    init(group, weight, 0);
    push(group, weight, (float)(4 * (rank + 1)));
    show("weight of the group", group, weight);
    show("weight of the job", store, named(store, "w"));
    TRY(kv_close(group, WAIT_MS));
    kv_free(group);
}

/* Workers exchange values without a key: a sum, the value of one worker, and the value of each. */
static void collective_calls(kv_store *store) {
    float one[ELEMENTS], two[ELEMENTS], out[ELEMENTS], each[MOST_WORKERS][ELEMENTS];
    const kv_tensor values[] = {floats(one), floats(two)}, result = floats(out);
    kv_tensor all[MOST_WORKERS];
    fill(one, (float)(rank + 1));
    fill(two, (float)(2 * (rank + 1)));
    TRY(kv_allreduce(store, KV_SUM, values, 2, &result, 1, NULL));
    report("sum of all: %g\n", (double)out[0]);

    fill(out, (float)(rank + 1));
    TRY(kv_broadcast_from(store, workers - 1, &result, 1, NULL));
    report("value of the last: %g\n", (double)out[0]);

    for (int32_t i = 0; i < workers; i++) {
        all[i] = floats(each[i]);
    }
    TRY(kv_allgather(store, &values[0], all, (size_t)workers, NULL));
    report("values of all:");
    for (int32_t i = 0; i < workers; i++) {
        report(" %g", (double)each[i][0]);
    }
    report("\n");
}

int main(int argc, char **argv) {
    kv_store *store = NULL;
    TRY(kv_create(argc > 1 ? argv[1] : "local", NULL, &store));
    TRY(kv_rank(store, &rank));
    TRY(kv_num_workers(store, &workers));
    if (workers > MOST_WORKERS) {
        fprintf(stderr, "at most %d workers\n", MOST_WORKERS);
        return EXIT_FAILURE;
    }
    what_there_is();
    ends_of_operations(store);
    rules_of_keys(store);
    means(store);
    unequal_epochs(store);
    bound_list(store);
    opaque_values(store);
    a_model_of_another_program(store);
    clipping(store);
    a_group(store);
    collective_calls(store);
    TRY(kv_barrier(store, WAIT_MS)); /* no worker leaves while others need its values */
    TRY(kv_close(store, WAIT_MS));
    kv_free(store);
    return EXIT_SUCCESS;
}
