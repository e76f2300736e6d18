/*
 * check.h - what every test program stands on: two macros and a last line.
 *
 * A failed check prints what is known and ends the program with status 1; a program that reaches
 * its end says how many checks passed. Include this file first: it asks for POSIX 2008.
 */
#ifndef CHECK_H
#define CHECK_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include <kvstore.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * helgrind does not understand the locks of the library, which are not pthread's. These lines tell
 * it what the header promises: what a thread did before a call, or a callback before its end, has
 * happened before what comes after a later call, and memory is the caller's once its loan ends.
 */
#if defined(__has_include)
#if __has_include(<valgrind/helgrind.h>)
#include <valgrind/helgrind.h>
#define CHECK_HELGRIND 1
#endif
#endif
#ifndef CHECK_HELGRIND
#define ANNOTATE_HAPPENS_BEFORE(object) ((void)(object))
#define ANNOTATE_HAPPENS_AFTER(object) ((void)(object))
#define VALGRIND_HG_CLEAN_MEMORY(address, size) ((void)(address), (void)(size))
#endif

static atomic_long check_count;

static inline void border_of_library(void) {
    static char order;
    ANNOTATE_HAPPENS_AFTER(&order);
    ANNOTATE_HAPPENS_BEFORE(&order);
}

static inline void end_of_loan(void *memory, size_t size) {
    VALGRIND_HG_CLEAN_MEMORY(memory, size);
}

static inline void check_that(int passed, const char *text, const char *file, int line) {
    atomic_fetch_add(&check_count, 1);
    if (!passed) {
        fprintf(stderr, "%s:%d: failed: %s\n    last error: %s\n", file, line, text,
                kv_last_error());
        exit(1);
    }
}

static inline void check_status(kv_status got, kv_status wanted, const char *text,
                                const char *file, int line) {
    border_of_library();
    atomic_fetch_add(&check_count, 1);
    if (got != wanted) {
        /* The message first: the next call of the library may end its life. */
        fprintf(stderr, "%s:%d: failed: %s\n    last error: %s\n", file, line, text,
                kv_last_error());
        fprintf(stderr, "    got %s (%d)", kv_status_name(got), (int)got);
        fprintf(stderr, ", expected %s (%d)\n", kv_status_name(wanted), (int)wanted);
        exit(1);
    }
}

/* The condition must be true. */
#define CHECK(condition) check_that((condition) ? 1 : 0, #condition, __FILE__, __LINE__)

/* The call must return this status. */
#define CHECK_STATUS(call, wanted) \
    check_status((border_of_library(), (call)), (wanted), #call " == " #wanted, __FILE__, __LINE__)

/* Ends a program: `return check_passed("api_push");`. */
static inline int check_passed(const char *program) {
    printf("%s: %ld checks passed\n", program, atomic_load(&check_count));
    return fflush(stdout) == 0 ? 0 : 1;
}

#endif /* CHECK_H */
