/* Data-parallel training of the network: worker threads share the weights through one store. */
#ifndef TRAINING_H
#define TRAINING_H

#include <stdbool.h>

#include "digits.h"
#include "network.h"

/* A batch is cut into quarters, one for each worker. */
enum { BATCH = 128, QUARTERS = 4, QUARTER = BATCH / QUARTERS };

/* What one epoch gave. */
struct epoch {
    int number;      /* from 1 */
    double loss;     /* mean cross entropy of the samples trained on */
    double accuracy; /* part of the held-out samples classified right */
    double megabytes_per_second; /* pushed and pulled in the epoch, by its whole duration */
};

struct setup {
    const struct digits *train; /* at least BATCH samples */
    const struct digits *held_out;
    int epochs;
    int workers;               /* QUARTERS threads, or 1 thread that takes the quarters in turn */
    const char *store_threads; /* the store's option "threads" */
    void (*report)(void *context, const struct epoch *epoch); /* after each epoch; may be NULL */
    void *context;
};

/*
 * Trains from a fixed seed and writes the weights. Returns whether all workers ended with the same
 * ones, bit for bit.
 */
bool train(const struct setup *setup, struct network *weights);

#endif
