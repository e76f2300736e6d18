#include <kvstore.h>
#include <stdio.h>

int main(void) {
    kv_store *store = NULL;
    kv_key key = 3;
    float value[2] = {2, 2};
    float out[2] = {0, 0};
    int64_t shape[1] = {2};
    kv_tensor in_tensor = kv_tensor_cpu(value, KV_F32, 1, shape);
    kv_tensor out_tensor = kv_tensor_cpu(out, KV_F32, 1, shape);

    if (kv_create("local", NULL, &store) != KV_OK || kv_init(store, &key, &in_tensor, 1) != KV_OK ||
        kv_pull(store, &key, &out_tensor, 1, 0, NULL) != KV_OK) {
        printf("%s\n", kv_last_error());
        return 1;
    }
    kv_free(store);
    printf("pulled %g %g\n", out[0], out[1]);
    return 0;
}
