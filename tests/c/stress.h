/*
 * stress.h - threads that start together, each with its own number.
 */
#ifndef STRESS_H
#define STRESS_H

#include "support.h"

enum { THREADS = 8 };

/* What one thread knows. */
typedef struct worker {
    int number; /* 0 to THREADS - 1 */
    kv_store *store;
    void *shared;
    pthread_barrier_t *start;
    void (*work)(struct worker *self);
} worker;

static inline void *worker_main(void *context) {
    worker *self = context;
    pthread_barrier_wait(self->start);
    self->work(self);
    return NULL;
}

/* Runs `work` on all threads at once and returns when all have ended. */
static inline void run_together(kv_store *store, void *shared, void (*work)(worker *self)) {
    pthread_t threads[THREADS];
    worker workers[THREADS];
    pthread_barrier_t start;
    CHECK(pthread_barrier_init(&start, NULL, THREADS) == 0);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){i, store, shared, &start, work};
        CHECK(pthread_create(&threads[i], NULL, worker_main, &workers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    pthread_barrier_destroy(&start);
}

/* Frees a store whose updaters and buffers have been on the stack of this thread. */
static inline void free_store(kv_store *store) {
    kv_free(store);
    border_of_library();
}

/* 1 + 2 + ... + THREADS: what all threads push together when thread t pushes t + 1. */
enum { SUM_OF_ALL = THREADS * (THREADS + 1) / 2 };

#endif /* STRESS_H */
