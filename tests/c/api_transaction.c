/* Transactions: steps of every float dtype that are taken back leave the bits of a store that never made them, a
 * checkpoint included, and what is refused. */
#include "files.h"
#include "numbers.h"
#include "support.h"

enum { COUNT = 5000, KEYS = 3 };

static const kv_key ALL[KEYS] = {3, 1, 2};
static const char *file;

/* Arrays of a dtype, with numbers that differ from step to step. */
typedef struct {
    uint64_t room[KEYS][COUNT];
    kv_tensor tensors[KEYS];
    int64_t shape[1];
} arrays;

static void fill(arrays *all, kv_dtype dtype, int step) {
    all->shape[0] = COUNT;
    for (int key = 0; key < KEYS; key++) {
        all->tensors[key] = kv_tensor_cpu(all->room[key], dtype, 1, all->shape);
        for (int at = 0; at < COUNT; at++) {
            double number = sin(step * 11.0 + key * 7.0 + at);
            save_bits(dtype, (char *)all->room[key] + (size_t)at * dtype_size(dtype),
                      encode_float(dtype, number));
        }
    }
}

static kv_store *fresh(const char *type, kv_dtype dtype, const char *rule) {
    static arrays values;
    kv_store *store = open_store(type);
    fill(&values, dtype, 0);
    CHECK_STATUS(kv_init(store, ALL, values.tensors, KEYS), KV_OK);
    CHECK_STATUS(kv_set_optimizer(store, rule, "multi_precision=1"), KV_OK);
    return store;
}

static void push(kv_store *store, kv_dtype dtype, int step, int one_by_one) {
    static arrays gradients;
    fill(&gradients, dtype, step);
    for (int key = 0; one_by_one && key < KEYS; key++) {
        CHECK_STATUS(kv_push(store, ALL + key, gradients.tensors + key, 1, 0, NULL), KV_OK);
    }
    if (!one_by_one) {
        CHECK_STATUS(kv_push(store, ALL, gradients.tensors, KEYS, 0, NULL), KV_OK);
    }
}

/* Values, states and counts are equal: so are the files. */
static void check_same(kv_store *one, kv_store *other) {
    size_t size;
    CHECK_STATUS(kv_save(one, file), KV_OK);
    unsigned char *bytes = read_file(file, &size);
    CHECK_STATUS(kv_save(other, file), KV_OK);
    check_file(file, bytes, size);
    free(bytes);
}

static void steps_are_taken_back(const char *type, kv_dtype dtype, const char *rule) {
    kv_store *plain = fresh(type, dtype, rule), *tried = fresh(type, dtype, rule);
    for (int step = 1; step < 4; step++) {
        int32_t outcome = -1;
        CHECK_STATUS(kv_begin(tried), KV_OK);
        push(tried, dtype, 40 + step, step % 2);
        push(tried, dtype, 50 + step, 1);
        CHECK_STATUS(kv_rollback(tried), KV_OK);
        check_same(plain, tried);
        push(plain, dtype, step, 0);
        CHECK_STATUS(kv_begin(tried), KV_OK);
        push(tried, dtype, step, 1);
        CHECK_STATUS(kv_commit(tried, &outcome), KV_OK);
        CHECK(outcome == KV_COMMIT_KEPT);
        check_same(plain, tried);
    }
    kv_free(plain);
    kv_free(tried);
}

/* Gradients that are pushed key by key, and again by one call where they are to be scaled. */
static void norms_are_those_of_one_call(const char *type, kv_dtype dtype) {
    kv_store *plain = fresh(type, dtype, "adam"), *tried = fresh(type, dtype, "adam");
    const double max_norms[] = {1e6, 1.5, INFINITY, 0.25};
    for (int step = 1; step < 5; step++) {
        double norms[2];
        uint64_t skips;
        int32_t outcome = -1;
        CHECK_STATUS(kv_set_clipping(plain, max_norms[step - 1], 0), KV_OK);
        CHECK_STATUS(kv_set_clipping(tried, max_norms[step - 1], 0), KV_OK);
        push(plain, dtype, step, 0);
        CHECK_STATUS(kv_last_norm(plain, norms, &skips), KV_OK);
        CHECK_STATUS(kv_begin(tried), KV_OK);
        push(tried, dtype, step, 1);
        CHECK_STATUS(kv_commit(tried, &outcome), KV_OK);
        CHECK_STATUS(kv_last_norm(tried, norms + 1, &skips), KV_OK);
        CHECK(memcmp(norms, norms + 1, sizeof *norms) == 0);
        CHECK(outcome == (step % 2 ? KV_COMMIT_KEPT : KV_COMMIT_EXCEEDED));
        if (outcome == KV_COMMIT_EXCEEDED) {
            push(tried, dtype, step, 0);
        }
        check_same(plain, tried);
    }
    kv_free(plain);
    kv_free(tried);
}

static void a_norm_that_is_not_finite_skips_or_fails(const char *type) {
    kv_store *plain = fresh(type, KV_F32, "sgd"), *tried = fresh(type, KV_F32, "sgd");
    static float bad[COUNT];
    bad[COUNT - 1] = INFINITY;
    int64_t shape[] = {COUNT};
    kv_tensor tensor = kv_tensor_cpu(bad, KV_F32, 1, shape);
    for (uint32_t flags = 0; flags <= KV_CLIP_FAIL; flags++) {
        double norm;
        uint64_t skips;
        int32_t outcome = -1;
        CHECK_STATUS(kv_set_clipping(tried, 1, flags), KV_OK);
        CHECK_STATUS(kv_begin(tried), KV_OK);
        push(tried, KV_F32, 1, 1);
        CHECK_STATUS(kv_push(tried, ALL + 1, &tensor, 1, 0, NULL), KV_OK);
        kv_status status = kv_commit(tried, &outcome);
        CHECK(flags ? status == KV_ERR_INVALID_ARGUMENT && outcome == -1
                    : status == KV_OK && outcome == KV_COMMIT_SKIPPED);
        CHECK_STATUS(kv_last_norm(tried, &norm, &skips), KV_OK);
        CHECK(isinf(norm) && skips == 1);
        check_same(plain, tried);
        CHECK_STATUS(kv_rollback(tried), KV_ERR_INVALID_ARGUMENT);
    }
    kv_free(plain);
    kv_free(tried);
}

static void tickets_count_and_ends_wait(const char *type) {
    kv_store *store = fresh(type, KV_F32, "momentum"), *plain = fresh(type, KV_F32, "momentum");
    static arrays gradients;
    fill(&gradients, KV_F32, 3);
    CHECK_STATUS(kv_begin(store), KV_OK);
    for (int turn = 0; turn < 200; turn++) {
        kv_ticket ticket;
        CHECK_STATUS(kv_push(store, ALL + turn % KEYS, gradients.tensors + turn % KEYS, 1, 0, &ticket), KV_OK);
    }
    CHECK_STATUS(kv_rollback(store), KV_OK);
    CHECK_STATUS(kv_wait_all(store, -1), KV_OK);
    check_same(plain, store);
    kv_free(store);
    kv_free(plain);
}

static void what_is_wrong_is_refused(const char *type) {
    kv_store *store = fresh(type, KV_F32, "sgd");
    int32_t outcome = -1;
    CHECK_STATUS(kv_commit(store, &outcome), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_rollback(store), KV_ERR_INVALID_ARGUMENT);
    CHECK(error_says("no transaction has begun"));
    CHECK_STATUS(kv_begin(store), KV_OK);
    CHECK_STATUS(kv_commit(store, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_begin(store), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_set_optimizer(store, "adam", NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_set_updater(store, NULL, NULL, NULL), KV_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(kv_set_clipping(store, 1, 0), KV_ERR_INVALID_ARGUMENT);
    CHECK(error_says("a transaction has begun"));
    CHECK_STATUS(kv_set_hyperparameter(store, "learning_rate", 0.5), KV_OK);
    CHECK_STATUS(kv_commit(store, &outcome), KV_OK);
    CHECK(outcome == KV_COMMIT_KEPT);
    CHECK_STATUS(kv_set_compression(store, "2bit", NULL), KV_OK);
    CHECK_STATUS(kv_begin(store), KV_ERR_UNSUPPORTED);
    CHECK_STATUS(kv_set_compression(store, "none", NULL), KV_OK);
    /* A transaction that goes on ends with the store. */
    CHECK_STATUS(kv_begin(store), KV_OK);
    push(store, KV_F32, 1, 1);
    kv_free(store);
    CHECK(kv_capable("transactions") == 1);
}

int main(void) {
    static const kv_dtype dtypes[] = {KV_F32, KV_F64, KV_F16, KV_BF16};
    static const char *const rules[] = {"sgd", "adam", "lamb", "groupadagrad"};
    file = new_folder("saved");
    for (size_t type = 0; type < STORE_TYPE_COUNT; type++) {
        for (size_t i = 0; i < 4; i++) {
            steps_are_taken_back(STORE_TYPES[type], dtypes[i], rules[(i + type) % 4]);
            steps_are_taken_back(STORE_TYPES[type], dtypes[i], rules[(i + type + 2) % 4]);
            norms_are_those_of_one_call(STORE_TYPES[type], dtypes[i]);
        }
        a_norm_that_is_not_finite_skips_or_fails(STORE_TYPES[type]);
        tickets_count_and_ends_wait(STORE_TYPES[type]);
        what_is_wrong_is_refused(STORE_TYPES[type]);
    }
    CHECK(remove(file) == 0);
    remove_folder();
    return check_passed("api_transaction");
}
