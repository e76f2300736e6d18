/* Forgets stores on purpose: a tool that looks for leaks must find them. */

#include <kvstore.h>
#include <stdio.h>

int main(void) {
    kv_store *store = NULL;
    /* Several, because a register or a stack slot may keep the last pointer alive. */
    for (int i = 0; i < 16; i++) {
        kv_status status = kv_create("local", NULL, &store);
        if (status != KV_OK) {
            printf("kv_create: %s\n", kv_last_error());
            return 1;
        }
    }
    return 0;
}
