/* Two threads change one number without a lock on purpose: helgrind must find it. */

#include <kvstore.h>
#include <pthread.h>
#include <stdio.h>

static int counter;

static void *count(void *unused) {
    (void)unused;
    for (int i = 0; i < 100; i++) {
        counter++;
    }
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        if (pthread_create(&threads[i], NULL, count, NULL) != 0) {
            return 1;
        }
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    printf("%d with %s\n", counter, kv_version());
    return 0;
}
