/*
 * leak.h - thousands of rounds of the same work must not use more and more memory.
 *
 * A memory checker names the culprit; this notices one lost allocation in each round without one.
 */
#ifndef LEAK_H
#define LEAK_H

#include "support.h"

#include <malloc.h>

/* Bytes that are allocated now; 0 where the C library or a memory checker does not tell. */
static inline size_t bytes_in_use(void) {
#if defined(__GLIBC__) && (__GLIBC__ > 2 || (__GLIBC__ == 2 && __GLIBC_MINOR__ >= 33))
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
#else
    return 0;
#endif
}

/*
 * Caches fill up at first, at a pace that depends on timing; so one batch without growth is enough.
 * A leak grows in every batch: by 32 bytes a round at least, the smallest allocation.
 */
static inline void check_no_growth(void (*work)(void), long rounds) {
    enum { BATCHES = 10 };
    size_t growth = SIZE_MAX;
    for (int batch = 0; batch < BATCHES && growth > (size_t)rounds * 16; batch++) {
        size_t before = bytes_in_use();
        for (long i = 0; i < rounds; i++) {
            work();
        }
        size_t after = bytes_in_use();
        growth = after > before ? after - before : 0;
    }
    CHECK(growth <= (size_t)rounds * 16);
}

#endif /* LEAK_H */
