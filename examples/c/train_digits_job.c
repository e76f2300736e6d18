/*
 * Trains the network on handwritten digits with a store of any type; only the type string differs:
 *
 *   train_digits_job local DATA            one process, which computes all quarters of a batch
 *   train_digits_job dist_sync DATA        one worker of four, which computes its quarter:
 *                                          kvstore run -n 4 -s 2 -- train_digits_job dist_sync DATA
 *
 * The rule is momentum, where the weights are: in the process, or on the servers. The sum of the four
 * gradients has one order in both cases, so that the weights end with the same bits.
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */

#include <errno.h>
#include <string.h>

#include "clock.h"
#include "plot.h"
#include "try.h"

enum { SEED = 2026, EPOCHS = 20, USAGE_STATUS = 2, WAIT_MS = 60000 };

static const double required_accuracy = 0.96;

struct job {
    kv_store *store;
    kv_key keys[NETWORK_PARAMETERS];
    int32_t rank;
    int32_t workers; /* 1 or QUARTERS */
    struct digits train, held_out;
    size_t *order; /* of the samples, the same on all workers */
    struct splitmix numbers;
    struct network weights;
    struct network gradients[QUARTERS];
    struct epoch epochs[EPOCHS];
};

static void require(bool success, const char *what) {
    if (!success) {
        fprintf(stderr, "%s\n", what);
        exit(EXIT_FAILURE);
    }
}

static void open_store(struct job *job, const char *type) {
    kv_tensor tensors[NETWORK_PARAMETERS];
    TRY(kv_create(type, NULL, &job->store));
    TRY(kv_rank(job->store, &job->rank));
    TRY(kv_num_workers(job->store, &job->workers));
    require(job->workers == 1 || job->workers == QUARTERS, "start 1 or 4 workers");
    for (int i = 0; i < NETWORK_PARAMETERS; i++) {
        TRY(kv_intern(job->store, network_names[i], &job->keys[i]));
    }
    network_fill(&job->weights, &job->numbers);
    network_tensors(&job->weights, tensors);
    TRY(kv_init(job->store, job->keys, tensors, NETWORK_PARAMETERS));
    TRY(kv_set_optimizer(job->store, "sgd", "learning_rate=0.1,momentum=0.9"));
}

static void shuffle(struct job *job) {
    for (size_t i = job->train.count - 1; i > 0; i--) {
        const size_t j = splitmix_next(&job->numbers) % (i + 1);
        const size_t swapped = job->order[i];
        job->order[i] = job->order[j];
        job->order[j] = swapped;
    }
}

static void compute_quarter(struct job *job, size_t batch, int quarter) {
    const size_t *samples = &job->order[batch * BATCH + (size_t)quarter * QUARTER];
    struct network *gradient = &job->gradients[quarter];
    memset(gradient, 0, sizeof *gradient);
    for (int i = 0; i < QUARTER; i++) {
        const size_t sample = samples[i];
        (void)network_gradient(&job->weights, job->train.pixels[sample],
                               job->train.labels[sample], 1.0F / BATCH, gradient);
    }
}

/* Computes this worker's quarters and exchanges them for the next weights. A list of values of one
 * key is added up in its order, and so are the workers by rank. */
static void step(struct job *job, size_t batch) {
    kv_key keys[NETWORK_PARAMETERS * QUARTERS];
    kv_tensor values[NETWORK_PARAMETERS * QUARTERS], outs[NETWORK_PARAMETERS];
    size_t count = 0;
    for (int quarter = job->rank; quarter < QUARTERS; quarter += job->workers) {
        compute_quarter(job, batch, quarter);
        memcpy(&keys[count], job->keys, sizeof job->keys);
        network_tensors(&job->gradients[quarter], &values[count]);
        count += NETWORK_PARAMETERS;
    }
    network_tensors(&job->weights, outs);
    TRY(kv_pushpull(job->store, keys, values, count, job->keys, outs, NETWORK_PARAMETERS, 0, NULL));
}

static double accuracy(const struct job *job) {
    size_t right = 0;
    for (size_t i = 0; i < job->held_out.count; i++) {
        right += network_classify(&job->weights, job->held_out.pixels[i]) ==
                 job->held_out.labels[i];
    }
    return (double)right / (double)job->held_out.count;
}

/* The mean cross entropy of the samples trained on, with the weights as they are now. */
static double loss(struct job *job) {
    double sum = 0.0;
    for (size_t i = 0; i < job->train.count; i++) {
        sum += network_gradient(&job->weights, job->train.pixels[i], job->train.labels[i], 0.0F,
                                &job->gradients[0]);
    }
    return sum / (double)job->train.count;
}

static void report(struct job *job, int number, double seconds, size_t batches) {
    const double copies = (double)batches * (QUARTERS + job->workers);
    const struct epoch epoch = {.number = number,
                                .loss = loss(job),
                                .accuracy = accuracy(job),
                                .megabytes_per_second =
                                    copies * sizeof(struct network) / seconds / 1e6};
    job->epochs[number - 1] = epoch;
    if (number == 1 || number % 4 == 0) {
        printf("epoch %2d/%d   loss %.4f   accuracy %.4f   %7.1f MB/s through the store\n", number,
               EPOCHS, epoch.loss, epoch.accuracy, epoch.megabytes_per_second);
        fflush(stdout);
    }
}

static void learn(struct job *job) {
    const size_t batches = job->train.count / BATCH;
    for (int number = 1; number <= EPOCHS; number++) {
        const double began = clock_seconds();
        shuffle(job);
        for (size_t batch = 0; batch < batches; batch++) {
            step(job, batch);
        }
        if (job->rank == 0) {
            report(job, number, clock_seconds() - began, batches);
        }
    }
}

/* Writes the weights as they are in memory, for a comparison byte by byte. */
static void write_weights(const struct job *job, const char *path) {
    FILE *file = fopen(path, "wb");
    const bool written =
        file != NULL && fwrite(&job->weights, sizeof job->weights, 1, file) == 1;
    if (!written || fclose(file) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(EXIT_FAILURE);
    }
}

static bool finish(const struct job *job, const char *weights, const char *picture) {
    const struct curve curve = {job->epochs, EPOCHS, required_accuracy};
    const double reached = job->epochs[EPOCHS - 1].accuracy;
    write_weights(job, weights);
    if (picture != NULL) {
        putchar('\n');
        plot_text(&curve, stdout);
        require(plot_svg(&curve, picture), "cannot write the picture");
        printf("\nLearning curve: %s\n", picture);
    }
    printf("Held-out accuracy: %.4f, required %.2f: %s\n", reached, required_accuracy,
           reached >= required_accuracy ? "passed" : "FAILED");
    return reached >= required_accuracy;
}

int main(int count, char **words) {
    if (count < 4 || count > 5) {
        fputs("usage: train_digits_job TYPE DATA WEIGHTS [SVG]\n"
              "  TYPE     local, or dist_sync in a job of four workers\n"
              "  DATA     table of the digits: 64 pixels and the label in each line\n"
              "  WEIGHTS  rank 0 writes the weights into this file\n"
              "  SVG      rank 0 draws the learning curve into this file\n",
              stderr);
        return USAGE_STATUS;
    }
    struct job *job = calloc(1, sizeof *job);
    require(job != NULL, "no memory");
    job->numbers.state = SEED;
    digits_read(words[2], &job->train, &job->held_out);
    require(job->train.count >= BATCH, "too few images for a batch");
    job->order = malloc(job->train.count * sizeof *job->order);
    require(job->order != NULL, "no memory");
    for (size_t i = 0; i < job->train.count; i++) {
        job->order[i] = i;
    }
    open_store(job, words[1]);
    learn(job);
    const bool passed = job->rank != 0 || finish(job, words[3], count > 4 ? words[4] : NULL);
    TRY(kv_close(job->store, WAIT_MS));
    kv_free(job->store);
    free(job->order);
    digits_free(&job->train);
    digits_free(&job->held_out);
    free(job);
    return passed ? EXIT_SUCCESS : EXIT_FAILURE;
}
