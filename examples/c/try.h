/* Error handling of the examples: a call that fails ends the program with the library's text. */
#ifndef TRY_H
#define TRY_H

#include <kvstore.h>
#include <stdio.h>
#include <stdlib.h>

/* Runs a call of the library. A program that must go on would return the status instead. */
#define TRY(call) try_call((call), #call, __FILE__, __LINE__)

static inline void try_call(kv_status status, const char *call, const char *file, int line) {
    if (status == KV_OK) {
        return;
    }
    /* The text of kv_last_error() lives until this thread's next call, so it is asked for last. */
    const char *name = kv_status_name(status);
    fprintf(stderr, "%s:%d: %s\n%s: %s\n", file, line, call, name, kv_last_error());
    exit(EXIT_FAILURE);
}

#endif
