/* Eight threads push and pull without tickets: on one key, on their own keys, on all keys. */
#include "stress.h"

enum { COUNT = 1000 };

static long rounds;

/* Thread t pushes t + 1 to key 0, each time. */
static void push_to_one_key(worker *self) {
    for (long i = 0; i < rounds; i++) {
        CHECK_STATUS(push_number(self->store, 0, self->number + 1), KV_OK);
    }
}

static void no_update_of_one_key_is_lost(const char *type) {
    kv_store *store = open_store(type);
    init_number(store, 0, 0);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    run_together(store, NULL, push_to_one_key);
    CHECK(pull_number(store, 0) == rounds * SUM_OF_ALL);
    kv_free(store);
}

/* Each thread sees its own pushes at once, whatever the others do on their keys. */
static void push_to_own_key(worker *self) {
    kv_key key = (kv_key)self->number;
    for (long i = 0; i < rounds; i++) {
        CHECK_STATUS(push_number(self->store, key, self->number + 1), KV_OK);
        CHECK(pull_number(self->store, key) == (i + 1) * (self->number + 1));
    }
}

static void own_keys_do_not_disturb_each_other(const char *type) {
    kv_store *store = open_store(type);
    for (kv_key key = 0; key < THREADS; key++) {
        init_number(store, key, 0);
    }
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    run_together(store, NULL, push_to_own_key);
    kv_free(store);
}

/* All keys in one call, listed from another end by each thread: no order of locks may cross. */
static void push_to_all_keys(worker *self) {
    int64_t number = self->number + 1, got[THREADS];
    kv_key keys[THREADS], out_keys[THREADS];
    kv_tensor values[THREADS], outs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        keys[i] = (kv_key)((self->number * 3 + i * 5) % THREADS);
        out_keys[i] = (kv_key)(THREADS - 1 - i);
        values[i] = number_tensor(&number);
        outs[i] = number_tensor(&got[i]);
    }
    for (long i = 0; i < rounds; i++) {
        CHECK_STATUS(
            kv_pushpull(self->store, keys, values, THREADS, out_keys, outs, THREADS, 0, NULL),
            KV_OK);
        for (int j = 0; j < THREADS; j++) {
            CHECK(got[j] >= (i + 1) * number && got[j] <= rounds * SUM_OF_ALL);
        }
    }
}

static void lists_of_all_keys_do_not_deadlock(const char *type) {
    kv_store *store = open_store(type);
    for (kv_key key = 0; key < THREADS; key++) {
        init_number(store, key, 0);
    }
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    run_together(store, NULL, push_to_all_keys);
    for (kv_key key = 0; key < THREADS; key++) {
        CHECK(pull_number(store, key) == rounds * SUM_OF_ALL);
    }
    kv_free(store);
}

/* A pull beside pushes sees one push in full, never a mix of two. */
static void push_and_pull_arrays(worker *self) {
    float data[COUNT], got[COUNT];
    int64_t shape[] = {COUNT};
    kv_key key = 0;
    kv_tensor value = kv_tensor_cpu(data, KV_F32, 1, shape);
    kv_tensor out = kv_tensor_cpu(got, KV_F32, 1, shape);
    for (long i = 0; i < rounds; i++) {
        if (self->number % 2 == 0) {
            for (int j = 0; j < COUNT; j++) {
                data[j] = (float)(self->number * rounds + i);
            }
            CHECK_STATUS(kv_push(self->store, &key, &value, 1, 0, NULL), KV_OK);
        } else {
            CHECK_STATUS(kv_pull(self->store, &key, &out, 1, 0, NULL), KV_OK);
            int equal = 0;
            for (int j = 0; j < COUNT; j++) {
                equal += got[j] == got[0];
            }
            CHECK(equal == COUNT);
        }
    }
}

static void pulls_see_whole_pushes(const char *type) {
    static float zeros[COUNT];
    int64_t shape[] = {COUNT};
    kv_store *store = open_store(type);
    kv_key key = 0;
    kv_tensor value = kv_tensor_cpu(zeros, KV_F32, 1, shape);
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    run_together(store, NULL, push_and_pull_arrays);
    kv_free(store);
}

/* Keys come and go under the hands of the others: a status, never a wrong value. */
static void make_and_remove_keys(worker *self) {
    kv_key key = (kv_key)(self->number % 2);
    for (long i = 0; i < rounds; i++) {
        int64_t number = 7, got = 7;
        kv_tensor value = number_tensor(&number), out = number_tensor(&got);
        kv_status status = kv_init(self->store, &key, &value, 1);
        CHECK(status == KV_OK || status == KV_ERR_KEY_EXISTS);
        status = kv_push(self->store, &key, &value, 1, 0, NULL);
        CHECK(status == KV_OK || status == KV_ERR_KEY_NOT_FOUND);
        status = kv_pull(self->store, &key, &out, 1, 0, NULL);
        CHECK(status == KV_OK || status == KV_ERR_KEY_NOT_FOUND);
        CHECK(got == 7);
        status = kv_remove(self->store, &key, 1);
        CHECK(status == KV_OK || status == KV_ERR_KEY_NOT_FOUND);
    }
}

static void keys_may_come_and_go_anywhere(const char *type) {
    kv_store *store = open_store(type);
    size_t count = 99;
    run_together(store, NULL, make_and_remove_keys);
    CHECK_STATUS(kv_keys(store, NULL, 0, &count), KV_OK);
    CHECK(count == 0);
    kv_free(store);
}

/* Every thread interns the same names; all get the same keys, and each key its name. */
static void intern_names(worker *self) {
    for (long i = 0; i < rounds; i++) {
        char name[32];
        const char *found = NULL;
        kv_key key = 0;
        snprintf(name, sizeof name, "layer%ld.weight", (i * 7 + self->number) % 100);
        CHECK_STATUS(kv_intern(self->store, name, &key), KV_OK);
        CHECK_STATUS(kv_key_name(self->store, key, &found), KV_OK);
        CHECK(strcmp(name, found) == 0);
    }
}

static void names_are_the_same_everywhere(const char *type) {
    kv_store *store = open_store(type);
    run_together(store, NULL, intern_names);
    kv_free(store);
}

int main(void) {
    alarm_after_minutes(10);
    rounds = scaled(3000, 20);
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        no_update_of_one_key_is_lost(STORE_TYPES[i]);
        own_keys_do_not_disturb_each_other(STORE_TYPES[i]);
        lists_of_all_keys_do_not_deadlock(STORE_TYPES[i]);
        pulls_see_whole_pushes(STORE_TYPES[i]);
        keys_may_come_and_go_anywhere(STORE_TYPES[i]);
        names_are_the_same_everywhere(STORE_TYPES[i]);
    }
    return check_passed("stress_push");
}
