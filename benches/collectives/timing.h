/* Sizes, values and medians of both programs of this folder. */
#ifndef KVSTORE_BENCH_TIMING_H
#define KVSTORE_BENCH_TIMING_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SIZES = 8, MOST_CALLS = 4000, WARM_UP = 5 };

/* Floats of an array: 64 bytes to 64 MiB. */
static const size_t counts[SIZES] = {16, 1024, 4096, 16384, 65536, 262144, 1048576, 16777216};

static inline double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static inline int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Small whole numbers, whose sums are exact in every order. */
static inline float *values(int rank, size_t count) {
    float *array = malloc(count * sizeof *array);
    if (array == NULL) {
        exit(1);
    }
    for (size_t i = 0; i < count; i++) {
        array[i] = (float)(rank + (int)(i % 7));
    }
    return array;
}

static inline void check(const float *sum, int workers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float wanted = (float)(workers * (workers - 1) / 2 + workers * (int)(i % 7));
        if (sum[i] != wanted) {
            fprintf(stderr, "element %zu is %g, not %g\n", i, (double)sum[i], (double)wanted);
            exit(1);
        }
    }
}

/* The median time of a call on an array of `count` floats, in microseconds. */
static inline double time_of(void (*call)(void), size_t count) {
    static double times[MOST_CALLS];
    /* Small calls for long enough that the system moves processes which share a processor. */
    int calls = count <= 16384 ? MOST_CALLS : count <= 65536 ? 400 : count <= 1048576 ? 60 : 12;
    for (int i = 0; i < WARM_UP; i++) {
        call();
    }
    for (int i = 0; i < calls; i++) {
        double before = now_us();
        call();
        times[i] = now_us() - before;
    }
    qsort(times, (size_t)calls, sizeof times[0], by_size);
    return times[calls / 2];
}

#endif
