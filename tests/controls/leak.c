/* Forgets stores on purpose: a tool that looks for leaks must find them. */

#include <kvstore.h>
#include <stdio.h>

/* Far more than kv_create uses. */
enum { STACK = 256 * 1024 };

/* A store is built on the stack, and the bytes between its fields keep what an earlier call left there: the
   pointer to the store before it. Each store would hold the one before it, and the last, which `main` still
   has, would hold all of them. */
static int overwrite_the_stack_below(void) {
    volatile char below[STACK];
    for (int i = 0; i < STACK; i++) {
        below[i] = 0;
    }
    return below[STACK - 1];
}

int main(void) {
    kv_store *store = NULL;
    /* Several, because a register or a stack slot may keep the last pointer alive. */
    for (int i = 0; i < 16; i++) {
        kv_status status = kv_create("local", NULL, &store);
        if (status != KV_OK) {
            printf("kv_create: %s\n", kv_last_error());
            return 1;
        }
        if (overwrite_the_stack_below() != 0) {
            return 1;
        }
    }
    return 0;
}
