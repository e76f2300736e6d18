#define _POSIX_C_SOURCE 200809L /* pthread_barrier_t, clock_gettime */

#include "training.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "clock.h"
#include "try.h"

enum { SEED = 2026, PUSHED = NETWORK_PARAMETERS * QUARTERS };

/*
 * Between two meetings at the barrier a worker changes the gradients and losses of its own
 * quarters and nothing else here; the rest belongs to the one worker that a meeting elects.
 */
struct training {
    const struct setup *setup;
    kv_store *store;
    kv_key keys[NETWORK_PARAMETERS];
    pthread_barrier_t barrier;
    struct splitmix numbers;
    size_t *order; /* the samples to train on, shuffled for each epoch */
    size_t batches;
    double epoch_began; /* in seconds */
    struct network gradients[QUARTERS];
    double losses[QUARTERS]; /* summed over the samples of the epoch so far */
};

struct worker {
    struct training *training;
    pthread_t thread;
    int index;
    struct network weights; /* its own copy, as if on a device of its own */
};

/* Waits for all workers; true for exactly one of them. */
static bool meet(struct training *training) {
    return pthread_barrier_wait(&training->barrier) == PTHREAD_BARRIER_SERIAL_THREAD;
}

/* Plain gradient descent: the store calls this with the sum of each key's gradients. */
static kv_status descend(void *context, kv_key key, const kv_tensor *input,
                         const kv_tensor *stored) {
    const float learning_rate = 0.5F;
    const float *gradient = input->data;
    float *weight = stored->data;
    int64_t count = 1;
    (void)context;
    (void)key;
    for (int32_t i = 0; i < stored->ndim; i++) {
        count *= stored->shape[i];
    }
    for (int64_t i = 0; i < count; i++) {
        weight[i] -= learning_rate * gradient[i];
    }
    return KV_OK;
}

/* Opens the store and gives it the first weights, each parameter under its name. */
static void open_store(struct training *training) {
    struct network weights;
    kv_tensor tensors[NETWORK_PARAMETERS];
    kv_config *config = NULL;
    TRY(kv_config_create(&config));
    TRY(kv_config_set(config, "threads", training->setup->store_threads));
    TRY(kv_create("local", config, &training->store));
    kv_config_free(config);
    for (int i = 0; i < NETWORK_PARAMETERS; i++) {
        TRY(kv_intern(training->store, network_names[i], &training->keys[i]));
    }
    network_fill(&weights, &training->numbers);
    network_tensors(&weights, tensors);
    TRY(kv_init(training->store, training->keys, tensors, NETWORK_PARAMETERS));
    TRY(kv_set_updater(training->store, descend, NULL, NULL));
}

/* Pushes, for each parameter, the list of its gradients. The order of a list is that of the
 * quarters, on any threads: it fixes every bit of the sum. */
static void push_gradients(struct training *training) {
    kv_key keys[PUSHED];
    kv_tensor values[PUSHED];
    for (int quarter = 0; quarter < QUARTERS; quarter++) {
        const int first = quarter * NETWORK_PARAMETERS;
        memcpy(&keys[first], training->keys, sizeof training->keys);
        network_tensors(&training->gradients[quarter], &values[first]);
    }
    TRY(kv_push(training->store, keys, values, PUSHED, 0, NULL));
}

static void pull_weights(struct worker *worker) {
    kv_tensor outs[NETWORK_PARAMETERS];
    network_tensors(&worker->weights, outs);
    TRY(kv_pull(worker->training->store, worker->training->keys, outs, NETWORK_PARAMETERS, 0,
                NULL));
}

static void shuffle(struct training *training) {
    for (size_t i = training->setup->train->count - 1; i > 0; i--) {
        const size_t j = splitmix_next(&training->numbers) % (i + 1);
        const size_t swapped = training->order[i];
        training->order[i] = training->order[j];
        training->order[j] = swapped;
    }
}

static void compute_quarter(struct worker *worker, size_t batch, int quarter) {
    struct training *training = worker->training;
    const struct digits *digits = training->setup->train;
    const size_t *samples = &training->order[batch * BATCH + (size_t)quarter * QUARTER];
    struct network *gradient = &training->gradients[quarter];
    double loss = 0.0;
    memset(gradient, 0, sizeof *gradient);
    for (int i = 0; i < QUARTER; i++) {
        const size_t sample = samples[i];
        loss += network_gradient(&worker->weights, digits->pixels[sample], digits->labels[sample],
                                 1.0F / BATCH, gradient);
    }
    training->losses[quarter] += loss;
}

static void step(struct worker *worker, size_t batch) {
    struct training *training = worker->training;
    for (int quarter = worker->index; quarter < QUARTERS; quarter += training->setup->workers) {
        compute_quarter(worker, batch, quarter);
    }
    if (meet(training)) {
        push_gradients(training);
    }
    meet(training); /* the push has been applied */
    pull_weights(worker);
}

static double accuracy(const struct network *weights, const struct digits *digits) {
    size_t right = 0;
    for (size_t i = 0; i < digits->count; i++) {
        right += network_classify(weights, digits->pixels[i]) == digits->labels[i];
    }
    return (double)right / (double)digits->count;
}

static void finish_epoch(struct training *training, int number, const struct network *weights) {
    const struct setup *setup = training->setup;
    const double duration = clock_seconds() - training->epoch_began;
    const double copies = (double)training->batches * (QUARTERS + setup->workers);
    double loss = 0.0;
    for (int quarter = 0; quarter < QUARTERS; quarter++) {
        loss += training->losses[quarter];
        training->losses[quarter] = 0.0;
    }
    if (setup->report != NULL) {
        const struct epoch epoch = {
            .number = number,
            .loss = loss / (double)(training->batches * BATCH),
            .accuracy = accuracy(weights, setup->held_out),
            .megabytes_per_second = copies * sizeof(struct network) / duration / 1e6,
        };
        setup->report(setup->context, &epoch);
    }
    shuffle(training);
    training->epoch_began = clock_seconds();
}

static void *work(void *argument) {
    struct worker *worker = argument;
    struct training *training = worker->training;
    pull_weights(worker);
    for (int number = 1; number <= training->setup->epochs; number++) {
        for (size_t batch = 0; batch < training->batches; batch++) {
            step(worker, batch);
        }
        if (meet(training)) {
            finish_epoch(training, number, &worker->weights);
        }
        meet(training); /* the order of the next epoch is there */
    }
    return NULL;
}

/* Ends the program if a function of the system failed. */
static void require(bool success, const char *what) {
    if (!success) {
        fprintf(stderr, "cannot %s\n", what);
        exit(EXIT_FAILURE);
    }
}

static void prepare(struct training *training, const struct setup *setup) {
    const size_t count = setup->train->count;
    training->setup = setup;
    training->numbers.state = SEED;
    training->batches = count / BATCH;
    training->order = malloc(count * sizeof *training->order);
    require(training->order != NULL, "get memory");
    for (size_t i = 0; i < count; i++) {
        training->order[i] = i;
    }
    open_store(training);
    shuffle(training);
    const int error = pthread_barrier_init(&training->barrier, NULL, (unsigned)setup->workers);
    require(error == 0, "make a barrier");
    training->epoch_began = clock_seconds();
}

bool train(const struct setup *setup, struct network *weights) {
    struct training *training = calloc(1, sizeof *training);
    struct worker *workers = calloc((size_t)setup->workers, sizeof *workers);
    bool agreed = true;
    require(training != NULL && workers != NULL, "get memory");
    prepare(training, setup);
    for (int i = 0; i < setup->workers; i++) {
        workers[i].training = training;
        workers[i].index = i;
        const int error = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
        require(error == 0, "start a thread");
    }
    for (int i = 0; i < setup->workers; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    *weights = workers[0].weights;
    for (int i = 1; i < setup->workers; i++) {
        agreed = agreed && memcmp(weights, &workers[i].weights, sizeof *weights) == 0;
    }
    kv_free(training->store);
    pthread_barrier_destroy(&training->barrier);
    free(training->order);
    free(training);
    free(workers);
    return agreed;
}
