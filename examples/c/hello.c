/* The smallest program: two devices push one gradient each, and the sum comes back. */
#include <kvstore.h>
#include <stdio.h>
#include <stdlib.h>

#define TRY(call) if ((call) != KV_OK) { fprintf(stderr, "%s\n", kv_last_error()); exit(1); }

int main(void) {
    float weight[] = {1, 2, 3, 4}, first[] = {1, 1, 1, 1}, second[] = {5, 6, 7, 8};
    int64_t shape[] = {4};
    kv_tensor value = kv_tensor_cpu(weight, KV_F32, 1, shape);
    kv_tensor gradients[] = {kv_tensor_cpu(first, KV_F32, 1, shape),
                             kv_tensor_cpu(second, KV_F32, 1, shape)};
    kv_key keys[] = {7, 7}; /* one parameter, two devices */
    kv_store *store = NULL;
    kv_ticket ticket;

    TRY(kv_create("local", NULL, &store));
    TRY(kv_init(store, keys, &value, 1));
    TRY(kv_push(store, keys, gradients, 2, 0, &ticket)); /* returns at once */
    TRY(kv_wait(store, ticket, 30000));                  /* the gradients are ours again */
    TRY(kv_pull(store, keys, &value, 1, 0, NULL));
    printf("%g %g %g %g\n", weight[0], weight[1], weight[2], weight[3]); /* 6 7 8 9 */
    kv_free(store);
    return 0;
}
