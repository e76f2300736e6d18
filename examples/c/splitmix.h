/* The random numbers of SplitMix64 (Steele, Lea and Flood, 2014): the same on every machine. */
#ifndef SPLITMIX_H
#define SPLITMIX_H

#include <stdint.h>

struct splitmix {
    uint64_t state; /* starts as the seed */
};

static inline uint64_t splitmix_next(struct splitmix *numbers) {
    numbers->state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t mixed = numbers->state;
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ (mixed >> 31);
}

/* Uniform in [-1, 1): 24 random bits, so that each result is exact in float. */
static inline float splitmix_uniform(struct splitmix *numbers) {
    return (float)(splitmix_next(numbers) >> 40) * 0x1p-23F - 1.0F;
}

#endif
