/* Digests of keys: their definition, rounds, order of operations, and what is refused. */
#include "support.h"

/* CRC-64/NVME, bit by bit, as docs/use/semantics.md defines it. */
static uint64_t digest_of(const void *data, size_t len) {
    const unsigned char *bytes = data;
    uint64_t sum = UINT64_MAX;
    for (size_t i = 0; i < len; i++) {
        sum ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            sum = (sum >> 1) ^ (sum & 1 ? UINT64_C(0x9a6c9329ac4bc9b5) : 0);
        }
    }
    return ~sum;
}

static kv_key_digest digest(kv_store *store, kv_key key) {
    kv_key_digest got = {0, 0, 0};
    CHECK_STATUS(kv_digest(store, &key, &got, 1), KV_OK);
    return got;
}

static void the_digest_is_that_of_the_bytes(const char *type) {
    kv_store *store = open_store(type);
    CHECK(digest_of("123456789", 9) == UINT64_C(0xae8b14860a799888));
    int64_t number = 0x0102030405060708;
    init_number(store, 1, number);
    kv_key_digest got = digest(store, 1);
    CHECK(got.round == 0 && got.state == 0);
    CHECK(got.value == digest_of(&number, sizeof number));
    number = 12;
    push_number(store, 1, number);
    got = digest(store, 1);
    CHECK(got.round == 1 && got.state == 0);
    CHECK(got.value == digest_of(&number, sizeof number));
    kv_free(store);
}

static void keys_are_in_any_order_and_may_be_there_twice(const char *type) {
    kv_store *store = open_store(type);
    kv_key keys[] = {2, 1, 2};
    kv_key_digest got[3] = {{9, 9, 9}, {9, 9, 9}, {9, 9, 9}};
    init_number(store, 1, 10);
    init_number(store, 2, 20);
    push_number(store, 2, 21);
    CHECK_STATUS(kv_digest(store, keys, got, 3), KV_OK);
    CHECK(got[0].round == 1 && got[1].round == 0);
    CHECK(got[0].value == got[2].value && got[0].value != got[1].value);
    CHECK_STATUS(kv_digest(store, NULL, NULL, 0), KV_OK);
    kv_free(store);
}

static void the_state_of_a_rule_has_a_digest(void) {
    kv_store *store = open_store("local");
    float value[4] = {1, 2, 3, 4}, ones[4] = {1, 1, 1, 1};
    int64_t shape[] = {4};
    kv_key key = 7;
    kv_tensor first = kv_tensor_cpu(value, KV_F32, 1, shape);
    kv_tensor gradient = kv_tensor_cpu(ones, KV_F32, 1, shape);
    CHECK_STATUS(kv_init(store, &key, &first, 1), KV_OK);
    CHECK_STATUS(kv_set_optimizer(store, "sgd", "learning_rate=0.5,momentum=0.5"), KV_OK);
    CHECK(digest(store, key).state == 0);
    CHECK_STATUS(kv_push(store, &key, &gradient, 1, 0, NULL), KV_OK);
    kv_key_digest one = digest(store, key);
    CHECK_STATUS(kv_push(store, &key, &gradient, 1, 0, NULL), KV_OK);
    kv_key_digest two = digest(store, key);
    CHECK(one.round == 1 && two.round == 2);
    CHECK(one.state != 0 && one.state != two.state && one.value != two.value);
    CHECK_STATUS(kv_pull(store, &key, &first, 1, 0, NULL), KV_OK);
    CHECK(two.value == digest_of(value, sizeof value));
    /* A new rule begins anew. */
    CHECK_STATUS(kv_set_optimizer(store, "sgd", NULL), KV_OK);
    CHECK(digest(store, key).state == 0 && digest(store, key).value == two.value);
    kv_free(store);
}

/* It waits for the operations of its thread, and fails at the first key that is not there. */
static void earlier_operations_come_first_and_unknown_keys_are_refused(const char *type) {
    kv_store *store = open_store(type);
    int64_t numbers[100];
    init_number(store, 1, 0);
    for (int64_t i = 0; i < 100; i++) {
        numbers[i] = i + 1;
        send_number(store, 1, &numbers[i], 0);
    }
    kv_key_digest got = digest(store, 1);
    CHECK(got.round == 100 && got.value == digest_of(&numbers[99], sizeof numbers[99]));
    kv_key keys[] = {1, 404};
    kv_key_digest untouched[2] = {{9, 9, 9}, {9, 9, 9}};
    CHECK_STATUS(kv_digest(store, keys, untouched, 2), KV_ERR_KEY_NOT_FOUND);
    CHECK(error_says("key 404"));
    CHECK(untouched[0].round == 9 && untouched[1].value == 9);
    CHECK_STATUS(kv_wait_all(store, WAIT_MS), KV_OK);
    kv_free(store);
}

int main(void) {
    const char *types[] = {"local", "device"};
    for (int i = 0; i < 2; i++) {
        the_digest_is_that_of_the_bytes(types[i]);
        keys_are_in_any_order_and_may_be_there_twice(types[i]);
        earlier_operations_come_first_and_unknown_keys_are_refused(types[i]);
    }
    the_state_of_a_rule_has_a_digest();
    return check_passed("api_digest");
}
