/*
 * Trains the network on handwritten digits with weights and gradients in GPU memory, on up to four
 * GPUs, and trains it again in host memory: the weights end with the same bits.
 *
 * A batch is cut into quarters; the gradient of each is on a GPU of its own, or on one of those that
 * there are. The store adds the four up in their order and makes one step of momentum, on the GPU of
 * the key, and copies the new weights to every GPU. The gradients are computed on the host, so that
 * the program needs no compiler for GPUs, and are uploaded; with a framework they would be there.
 *
 * Without a GPU it says why in one line and ends with status 77.
 */
#include <string.h>

#include "gpu.h"
#include "network.h"
#include "training.h"
#include "try.h"

enum { SEED = 2026, EPOCHS = 20, USAGE_STATUS = 2, NO_GPU_STATUS = 77 };

static const double required_accuracy = 0.96;

/* One training: in host memory, or with `gpu_count` GPUs. */
struct run {
    kv_store *store;
    kv_key keys[NETWORK_PARAMETERS];
    const struct digits *train;
    size_t *order; /* of the samples */
    struct splitmix numbers;
    struct network weights; /* what gradients are computed with, on the host */
    struct network gradients[QUARTERS];
    int gpu_count;
    struct gpu gpus[QUARTERS];
    struct network *gpu_gradients[QUARTERS]; /* of each quarter, in GPU memory */
    struct network *gpu_weights[QUARTERS];   /* of each GPU */
};

static void refuse(const char *reason) {
    fprintf(stderr, "train_digits_gpu: no GPU can be used: %s\n", reason);
    exit(NO_GPU_STATUS);
}

/* The GPU of a quarter. */
static const struct gpu *gpu_of(const struct run *run, int quarter) {
    return &run->gpus[quarter % run->gpu_count];
}

/* Views the parameters of a network that is in the memory of a GPU. */
static void tensors_on(const struct gpu *gpu, struct network *network,
                       kv_tensor tensors[NETWORK_PARAMETERS]) {
    network_tensors(network, tensors);
    for (int i = 0; i < NETWORK_PARAMETERS; i++) {
        tensors[i].device = gpu->device;
    }
}

/* Starts the GPUs, and names the stream of each for the calls of this thread. */
static void start_gpus(struct run *run) {
    for (int i = 0; i < run->gpu_count; i++) {
        struct gpu *gpu = &run->gpus[i];
        gpu_start(gpu, i);
        TRY(kv_set_stream(gpu->device, gpu->stream));
        run->gpu_weights[i] = gpu_allocate(gpu, sizeof(struct network));
    }
    for (int quarter = 0; quarter < QUARTERS && run->gpu_count > 0; quarter++) {
        run->gpu_gradients[quarter] = gpu_allocate(gpu_of(run, quarter), sizeof(struct network));
    }
}

static void open_store(struct run *run) {
    kv_tensor tensors[NETWORK_PARAMETERS];
    TRY(kv_create(run->gpu_count > 0 ? "device" : "local", NULL, &run->store));
    for (int i = 0; i < NETWORK_PARAMETERS; i++) {
        TRY(kv_intern(run->store, network_names[i], &run->keys[i]));
    }
    network_fill(&run->weights, &run->numbers);
    network_tensors(&run->weights, tensors);
    /* Each parameter gets a home: its value stays on the GPU of the tensor that initialises it. */
    for (int i = 0; i < NETWORK_PARAMETERS && run->gpu_count > 0; i++) {
        const int home = i % run->gpu_count;
        gpu_upload(&run->gpus[home], run->gpu_weights[home], &run->weights, sizeof run->weights);
        kv_tensor all[NETWORK_PARAMETERS];
        tensors_on(&run->gpus[home], run->gpu_weights[home], all);
        tensors[i] = all[i];
    }
    TRY(kv_init(run->store, run->keys, tensors, NETWORK_PARAMETERS));
    TRY(kv_set_optimizer(run->store, "sgd", "learning_rate=0.1,momentum=0.9"));
}

static void compute_quarter(struct run *run, size_t batch, int quarter) {
    const size_t *samples = &run->order[batch * BATCH + (size_t)quarter * QUARTER];
    struct network *gradient = &run->gradients[quarter];
    memset(gradient, 0, sizeof *gradient);
    for (int i = 0; i < QUARTER; i++) {
        const size_t sample = samples[i];
        (void)network_gradient(&run->weights, run->train->pixels[sample],
                               run->train->labels[sample], 1.0F / BATCH, gradient);
    }
}

/* Pushes the four gradients and pulls the next weights, in host memory. */
static void exchange_on_host(struct run *run, const kv_key *keys) {
    kv_tensor values[NETWORK_PARAMETERS * QUARTERS], outs[NETWORK_PARAMETERS];
    for (int quarter = 0; quarter < QUARTERS; quarter++) {
        network_tensors(&run->gradients[quarter], &values[quarter * NETWORK_PARAMETERS]);
    }
    network_tensors(&run->weights, outs);
    TRY(kv_pushpull(run->store, keys, values, NETWORK_PARAMETERS * QUARTERS, keys, outs,
                    NETWORK_PARAMETERS, 0, NULL));
}

/* The same on GPUs. Nothing waits here but the last copy: the uploads, the sums, the steps of the
 * optimizer and the copies to each GPU are queued on the streams, in this order. */
static void exchange_on_gpus(struct run *run, const kv_key *keys) {
    kv_tensor values[NETWORK_PARAMETERS * QUARTERS], outs[NETWORK_PARAMETERS * QUARTERS];
    for (int quarter = 0; quarter < QUARTERS; quarter++) {
        const struct gpu *gpu = gpu_of(run, quarter);
        struct network *gradient = run->gpu_gradients[quarter];
        gpu_upload(gpu, gradient, &run->gradients[quarter], sizeof *gradient);
        tensors_on(gpu, gradient, &values[quarter * NETWORK_PARAMETERS]);
    }
    for (int i = 0; i < run->gpu_count; i++) {
        tensors_on(&run->gpus[i], run->gpu_weights[i], &outs[i * NETWORK_PARAMETERS]);
    }
    TRY(kv_pushpull(run->store, keys, values, NETWORK_PARAMETERS * QUARTERS, keys, outs,
                    (size_t)run->gpu_count * NETWORK_PARAMETERS, 0, NULL));
    gpu_download(&run->gpus[0], &run->weights, run->gpu_weights[0], sizeof run->weights);
}

static void step(struct run *run, size_t batch) {
    kv_key keys[NETWORK_PARAMETERS * QUARTERS];
    for (int quarter = 0; quarter < QUARTERS; quarter++) {
        compute_quarter(run, batch, quarter);
        memcpy(&keys[quarter * NETWORK_PARAMETERS], run->keys, sizeof run->keys);
    }
    if (run->gpu_count > 0) {
        exchange_on_gpus(run, keys);
    } else {
        exchange_on_host(run, keys);
    }
}

static void shuffle(struct run *run) {
    for (size_t i = run->train->count - 1; i > 0; i--) {
        const size_t j = splitmix_next(&run->numbers) % (i + 1);
        const size_t swapped = run->order[i];
        run->order[i] = run->order[j];
        run->order[j] = swapped;
    }
}

static double accuracy(const struct network *weights, const struct digits *digits) {
    size_t right = 0;
    for (size_t i = 0; i < digits->count; i++) {
        right += network_classify(weights, digits->pixels[i]) == digits->labels[i];
    }
    return (double)right / (double)digits->count;
}

/* Says where the values are. */
static void show_homes(const struct run *run) {
    for (int i = 0; i < NETWORK_PARAMETERS; i++) {
        kv_device device;
        TRY(kv_key_device(run->store, run->keys[i], &device));
        printf("  %-10s %s %d\n", network_names[i], device.type == KV_CUDA ? "GPU" : "CPU",
               (int)device.id);
    }
}

/* Whether every GPU has been given the same weights, bit for bit. Frees what is on the GPUs. */
static bool finish_gpus(struct run *run) {
    bool same = true;
    for (int i = 0; i < run->gpu_count; i++) {
        struct network weights;
        gpu_download(&run->gpus[i], &weights, run->gpu_weights[i], sizeof weights);
        same = same && memcmp(&weights, &run->weights, sizeof weights) == 0;
        gpu_free(&run->gpus[i], run->gpu_weights[i]);
    }
    for (int quarter = 0; quarter < QUARTERS && run->gpu_count > 0; quarter++) {
        gpu_free(gpu_of(run, quarter), run->gpu_gradients[quarter]);
    }
    for (int i = 0; i < run->gpu_count; i++) {
        TRY(kv_set_stream(run->gpus[i].device, NULL));
        gpu_stop(&run->gpus[i]);
    }
    return same;
}

/* Trains from a fixed seed with some GPUs, or with none, and writes the weights. */
static bool train_run(int gpu_count, const struct digits *train, const struct digits *held_out,
                      struct network *weights) {
    struct run *run = calloc(1, sizeof *run);
    size_t *order = malloc(train->count * sizeof *order);
    if (run == NULL || order == NULL) {
        fputs("cannot get memory\n", stderr);
        exit(EXIT_FAILURE);
    }
    for (size_t i = 0; i < train->count; i++) {
        order[i] = i;
    }
    run->train = train;
    run->order = order;
    run->numbers.state = SEED;
    run->gpu_count = gpu_count;
    start_gpus(run);
    open_store(run);
    show_homes(run);
    for (int number = 1; number <= EPOCHS; number++) {
        shuffle(run);
        for (size_t batch = 0; batch < train->count / BATCH; batch++) {
            step(run, batch);
        }
        if (number == 1 || number % 5 == 0) {
            printf("  epoch %2d/%d   accuracy %.4f\n", number, EPOCHS,
                   accuracy(&run->weights, held_out));
            fflush(stdout);
        }
    }
    *weights = run->weights;
    const bool same = finish_gpus(run);
    kv_free(run->store);
    free(run->order);
    free(run);
    return same;
}

int main(int count, char **words) {
    if (count != 2) {
        fputs("usage: train_digits_gpu DATA\n", stderr);
        return USAGE_STATUS;
    }
    char reason[512];
    const int found = gpu_open(reason, sizeof reason);
    if (found == 0) {
        refuse(reason);
    }
    void *stream = NULL;
    if (kv_stream((kv_device){KV_CUDA, 0}, &stream) != KV_OK) {
        refuse(kv_last_error()); /* such as a driver that is too old, or a library without CUDA */
    }
    const int used = found < QUARTERS ? found : QUARTERS;
    struct digits train, held_out;
    digits_read(words[1], &train, &held_out);
    printf("libkvstore %s: %zu images of handwritten digits to train on, %zu held out\n",
           kv_version(), train.count, held_out.count);

    struct network on_gpus, on_host;
    printf("Four gradients in each push, on %d of %d GPUs; where the values are:\n", used, found);
    const bool agreed = train_run(used, &train, &held_out, &on_gpus);
    printf("The same in host memory:\n");
    (void)train_run(0, &train, &held_out, &on_host);

    const double final_accuracy = accuracy(&on_gpus, &held_out);
    const bool accurate = final_accuracy >= required_accuracy;
    const bool same = agreed && memcmp(&on_gpus, &on_host, sizeof on_gpus) == 0;
    printf("Held-out accuracy: %.4f, required %.2f: %s\n", final_accuracy, required_accuracy,
           accurate ? "passed" : "FAILED");
    printf("Bit-identical weights on all GPUs and in host memory: %s\n",
           same ? "passed" : "FAILED");
    digits_free(&train);
    digits_free(&held_out);
    return accurate && same ? EXIT_SUCCESS : EXIT_FAILURE;
}
