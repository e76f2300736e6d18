/*
 * A tour of the store in two chapters. Each step prints one line, "name: value".
 *
 * A store keeps one array for each key: a parameter of your model, say. Devices push values, such
 * as gradients, and pull the result. The words:
 *
 *   init   gives a key its shape, its type and its first value
 *   push   adds up the values that the devices have for a key and merges the sum into the store
 *   pull   copies the stored value out, to as many devices as you like
 */
#include <kvstore.h>
#include <stdio.h>
#include <stdlib.h>

#include "try.h"

enum { ROWS = 2, COLUMNS = 3, ELEMENTS = ROWS * COLUMNS, DEVICES = 4, MOST_CALLS = 8 };

/* All arrays here are of this shape. */
static int64_t shape[] = {ROWS, COLUMNS};

struct array {
    float elements[ELEMENTS];
};

static struct array full(float value) {
    struct array array;
    for (int i = 0; i < ELEMENTS; i++) {
        array.elements[i] = value;
    }
    return array;
}

/*
 * A tensor is a view: it says where the numbers are, what they are and how they lie, and owns
 * nothing. "Device" number `id` is ordinary memory here; the store takes any id.
 */
static kv_tensor on_device(struct array *array, int32_t id) {
    kv_tensor tensor = kv_tensor_cpu(array->elements, KV_F32, 2, shape);
    tensor.device.id = id;
    return tensor;
}

/* Prints the value that all elements of all arrays have; ends the program if they differ. */
static void show(const char *name, const struct array *arrays, int count) {
    const float value = arrays[0].elements[0];
    for (int i = 0; i < count * ELEMENTS; i++) {
        if (arrays[i / ELEMENTS].elements[i % ELEMENTS] != value) {
            fprintf(stderr, "%s: the elements differ\n", name);
            exit(EXIT_FAILURE);
        }
    }
    printf("%s: %g\n", name, (double)value);
}

/* What the updater below is given as its context: a factor, and a list of its calls. */
struct scaling {
    float factor;
    int calls;
    kv_key keys[MOST_CALLS];
};

/*
 * An updater decides how a push changes the stored value; without one the sum replaces it. This
 * one computes stored += factor * input. It runs once for each key of a push, after the values of
 * the devices have been added up into `input`.
 */
static kv_status add_scaled(void *context, kv_key key, const kv_tensor *input,
                            const kv_tensor *stored) {
    struct scaling *scaling = context;
    const float *sum = input->data;
    float *value = stored->data;
    if (scaling->calls == MOST_CALLS) {
        /* Any status but KV_OK makes the push fail, and this text says why. */
        kv_set_callback_error("the list of calls is full");
        return KV_ERR_CALLBACK;
    }
    scaling->keys[scaling->calls] = key;
    scaling->calls++;
    for (int i = 0; i < ELEMENTS; i++) {
        value[i] += scaling->factor * sum[i];
    }
    return KV_OK;
}

/* One key: init, push and pull, from one device and from four. */
static void one_key(kv_store *store) {
    const kv_key key = 3;
    struct array a = full(2);
    kv_tensor tensor = on_device(&a, 0);

    /* The value is copied: the array is ours again when the call is back. */
    TRY(kv_init(store, &key, &tensor, 1));
    a = full(0);
    TRY(kv_pull(store, &key, &tensor, 1, 0, NULL));
    show("init", &a, 1);

    a = full(8);
    TRY(kv_push(store, &key, &tensor, 1, 0, NULL));
    a = full(0);
    TRY(kv_pull(store, &key, &tensor, 1, 0, NULL));
    show("push", &a, 1);

    /* Four devices have a value each for the same key: the store adds them up. */
    const kv_key keys[DEVICES] = {key, key, key, key};
    struct array ones[DEVICES];
    kv_tensor values[DEVICES];
    for (int i = 0; i < DEVICES; i++) {
        ones[i] = full(1);
        values[i] = on_device(&ones[i], i);
    }
    TRY(kv_push(store, keys, values, DEVICES, 0, NULL));
    TRY(kv_pull(store, &key, &tensor, 1, 0, NULL));
    show("four devices", &a, 1);
}

/* The same key with an updater, which stays set from here on. */
static void updater(kv_store *store, struct scaling *scaling) {
    const kv_key key = 3;
    struct array a = full(0);
    kv_tensor tensor = on_device(&a, 0);

    /* Setting an updater changes no value. The store may use `scaling` until it is freed. */
    TRY(kv_set_updater(store, add_scaled, scaling, NULL));
    TRY(kv_pull(store, &key, &tensor, 1, 0, NULL));
    show("updater set", &a, 1);

    a = full(1);
    TRY(kv_push(store, &key, &tensor, 1, 0, NULL));
    TRY(kv_pull(store, &key, &tensor, 1, 0, NULL));
    show("updater push", &a, 1);
    printf("updater calls: %d\n", scaling->calls);
    printf("updater key: %d\n", (int)scaling->keys[0]);

    /* One call fills the arrays of all devices: the key stands in the list once for each. */
    const kv_key keys[DEVICES] = {key, key, key, key};
    struct array arrays[DEVICES];
    kv_tensor outs[DEVICES];
    for (int i = 0; i < DEVICES; i++) {
        outs[i] = on_device(&arrays[i], i);
    }
    TRY(kv_pull(store, keys, outs, DEVICES, 0, NULL));
    show("four outs", arrays, DEVICES);
}

/* Several keys in one call: cheaper than a call for each. */
static void many_keys(kv_store *store, struct scaling *scaling) {
    enum { KEYS = 3 };
    const kv_key keys[KEYS] = {5, 7, 9};
    struct array arrays[KEYS];
    kv_tensor tensors[KEYS];
    for (int i = 0; i < KEYS; i++) {
        arrays[i] = full(1);
        tensors[i] = on_device(&arrays[i], 0);
    }
    TRY(kv_init(store, keys, tensors, KEYS));
    scaling->calls = 0;
    TRY(kv_push(store, keys, tensors, KEYS, 0, NULL));
    TRY(kv_pull(store, keys, tensors, KEYS, 0, NULL));
    show("keys 5 7 9", arrays, KEYS);

    /* Keys are processed in ascending order, whatever their order in the call. */
    printf("updater order:");
    for (int i = 0; i < scaling->calls; i++) {
        printf(" %d", (int)scaling->keys[i]);
    }
    printf("\n");

    /* One array may be the out of several keys; the last one's value stays in it. */
    struct array a = full(0);
    const kv_tensor same[KEYS] = {on_device(&a, 0), on_device(&a, 0), on_device(&a, 0)};
    TRY(kv_pull(store, keys, same, KEYS, 0, NULL));
    show("one out of three keys", &a, 1);
}

/* Several keys with several devices each: a flat list of (key, tensor) pairs. */
static void list_of_lists(kv_store *store) {
    enum { KEYS = 3, PAIRS = KEYS * DEVICES };
    kv_key keys[PAIRS];
    struct array ones[DEVICES];
    struct array results[DEVICES];
    kv_tensor values[PAIRS];
    kv_tensor outs[PAIRS];
    for (int i = 0; i < DEVICES; i++) {
        ones[i] = full(1);
        results[i] = full(0);
    }
    for (int i = 0; i < PAIRS; i++) {
        const int device = i % DEVICES;
        keys[i] = 5 + 2 * (kv_key)(i / DEVICES);
        values[i] = on_device(&ones[device], device);
        outs[i] = on_device(&results[device], device);
    }
    TRY(kv_push(store, keys, values, PAIRS, 0, NULL));
    TRY(kv_pull(store, keys, outs, PAIRS, 0, NULL));
    show("list of lists", results, DEVICES);
}

/* The type `device` adds up where the values are; on ordinary memory it works as `local` does. */
static void device_one_key(kv_store *store) {
    const kv_key key = 3;
    struct array a = full(-2);
    kv_tensor tensor = on_device(&a, 0);
    TRY(kv_init(store, &key, &tensor, 1));
    a = full(0);
    TRY(kv_pull(store, &key, &tensor, 1, 0, NULL));
    show("device init", &a, 1);

    a = full(-7);
    TRY(kv_push(store, &key, &tensor, 1, 0, NULL));
    a = full(0);
    TRY(kv_pull(store, &key, &tensor, 1, 0, NULL));
    show("device push", &a, 1);

    const kv_key keys[] = {key, key, key};
    struct array ones[] = {full(1), full(1), full(1)};
    const kv_tensor values[] = {on_device(&ones[0], 0), on_device(&ones[1], 1),
                                on_device(&ones[2], 2)};
    TRY(kv_push(store, keys, values, 3, 0, NULL));
    TRY(kv_pull(store, &key, &tensor, 1, 0, NULL));
    show("device three ones", &a, 1);
}

static void device_many_keys(kv_store *store) {
    enum { KEYS = 4, VALUES = 3, PAIRS = KEYS * VALUES };
    const kv_key keys[KEYS] = {7, 11, 13, 17};
    struct array arrays[KEYS];
    kv_tensor tensors[KEYS];
    for (int i = 0; i < KEYS; i++) {
        arrays[i] = full(-3);
        tensors[i] = on_device(&arrays[i], i);
    }
    TRY(kv_init(store, keys, tensors, KEYS));
    TRY(kv_pull(store, keys, tensors, KEYS, 0, NULL));
    show("device keys", arrays, KEYS);

    kv_key pushed[PAIRS];
    kv_tensor values[PAIRS];
    struct array tenths[VALUES] = {full(-0.1F), full(-0.1F), full(-0.1F)};
    for (int i = 0; i < PAIRS; i++) {
        pushed[i] = keys[i / VALUES];
        values[i] = on_device(&tenths[i % VALUES], i % VALUES);
    }
    TRY(kv_push(store, pushed, values, PAIRS, 0, NULL));
    TRY(kv_pull(store, keys, tensors, KEYS, 0, NULL));
    show("device multi push", arrays, KEYS);
}

static void device_updater(kv_store *store, struct scaling *scaling) {
    const kv_key key = 3;
    struct array a = full(0);
    kv_tensor tensor = on_device(&a, 0);
    TRY(kv_set_updater(store, add_scaled, scaling, NULL));
    TRY(kv_pull(store, &key, &tensor, 1, 0, NULL));
    show("device updater set", &a, 1);

    a = full(5);
    TRY(kv_push(store, &key, &tensor, 1, 0, NULL));
    TRY(kv_pull(store, &key, &tensor, 1, 0, NULL));
    show("device updater push", &a, 1);
}

int main(void) {
    struct scaling twice = {.factor = 2};
    kv_store *store = NULL;
    TRY(kv_create("local", NULL, &store));
    one_key(store);
    updater(store, &twice);
    many_keys(store, &twice);
    list_of_lists(store);
    kv_free(store);

    struct scaling hundredth = {.factor = 0.01F};
    TRY(kv_create("device", NULL, &store));
    device_one_key(store);
    device_many_keys(store);
    device_updater(store, &hundredth);
    kv_free(store);
    return EXIT_SUCCESS;
}
