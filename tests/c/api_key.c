/* Keys: integers, names and their hash, what a store knows about them. */
#include "support.h"

/* The top bit of a key says that it stands for a name. */
static const kv_key NAME_BIT = (kv_key)1 << 63;

static uint64_t rotate(uint64_t word, int by) {
    return word << by | word >> (64 - by);
}

static void sip_round(uint64_t v[4]) {
    v[0] += v[1], v[1] = rotate(v[1], 13) ^ v[0], v[0] = rotate(v[0], 32);
    v[2] += v[3], v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = rotate(v[1], 17) ^ v[2], v[2] = rotate(v[2], 32);
}

/* SipHash-2-4 of `len` bytes: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012. */
static uint64_t siphash(uint64_t k0, uint64_t k1, const void *data, size_t len) {
    const unsigned char *bytes = data;
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575ULL, k1 ^ 0x646f72616e646f6dULL,
                     k0 ^ 0x6c7967656e657261ULL, k1 ^ 0x7465646279746573ULL};
    for (size_t at = 0; at <= len; at += 8) {
        uint64_t word = 0;
        for (size_t i = 0; i < 8 && at + i < len; i++) {
            word |= (uint64_t)bytes[at + i] << 8 * i;
        }
        if (at + 8 > len) {
            word |= (uint64_t)len << 56;
        }
        v[3] ^= word;
        sip_round(v);
        sip_round(v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++) {
        sip_round(v);
    }
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static kv_key key_of_name(const char *name) {
    return NAME_BIT | siphash(0, 0, name, strlen(name));
}

static kv_key intern(kv_store *store, const char *name) {
    kv_key key = 0;
    CHECK_STATUS(kv_intern(store, name, &key), KV_OK);
    return key;
}

/* The test's own hash gives the figure of the paper's appendix: key 00..0f, message 00..0e. */
static void the_reference_hash_is_right(void) {
    unsigned char message[15];
    for (int i = 0; i < 15; i++) {
        message[i] = (unsigned char)i;
    }
    CHECK(siphash(0x0706050403020100ULL, 0x0f0e0d0c0b0a0908ULL, message, sizeof message) ==
          0xa129ca6149be45e5ULL);
}

static void the_key_of_a_name_is_its_siphash(void) {
    static const char *const names[] = {
        "",       "a",          "1",        "7",         "ab",       "abc",       "weight",
        "1234567", "12345678", "123456789", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias",
        "a name with spaces", "\xc3\xa9t\xc3\xa9", "\xe9\x87\x8d", "\xf0\x9f\x98\x80",
    };
    kv_store *store = open_store("local");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *name = NULL;
        kv_key key = intern(store, names[i]);
        CHECK(key == key_of_name(names[i]));
        CHECK(intern(store, names[i]) == key);
        CHECK_STATUS(kv_key_name(store, key, &name), KV_OK);
        CHECK(strcmp(name, names[i]) == 0);
    }
    CHECK(intern(store, "fc1.weight") == 0x89ae13fe7c12473dULL);
    kv_free(store);
}

/* Every length of the last block of the hash, and a name far longer than any buffer. */
static void names_may_have_any_length(void) {
    enum { LONGEST = 100000 };
    char *name = malloc(LONGEST + 1);
    kv_store *store = open_store("local");
    CHECK(name != NULL);
    memset(name, 'n', LONGEST);
    name[LONGEST] = 0;
    CHECK(intern(store, name) == key_of_name(name));
    for (int len = 64; len >= 0; len--) {
        name[len] = 0;
        CHECK(intern(store, name) == key_of_name(name));
    }
    free(name);
    kv_free(store);
}

static void a_name_is_copied_and_lives_as_long_as_the_store(void) {
    char name[] = "weight";
    const char *first = NULL, *again = NULL;
    kv_store *store = open_store("local");
    kv_key key = intern(store, name);
    CHECK_STATUS(kv_key_name(store, key, &first), KV_OK);
    memset(name, 'x', 6);
    for (int i = 0; i < 1000; i++) {
        char other[32];
        snprintf(other, sizeof other, "layer%d.weight", i);
        intern(store, other);
    }
    CHECK_STATUS(kv_key_name(store, key, &again), KV_OK);
    CHECK(strcmp(first, "weight") == 0);
    CHECK(strcmp(again, "weight") == 0);
    kv_free(store);
}

static void names_of_unknown_keys_are_not_found(void) {
    const char *name = "untouched";
    kv_store *store = open_store("local"), *other = open_store("local");
    init_number(store, 7, 1);
    CHECK_STATUS(kv_key_name(store, 7, &name), KV_ERR_KEY_NOT_FOUND);
    CHECK(error_says("key 7"));
    CHECK_STATUS(kv_key_name(store, NAME_BIT | 7, &name), KV_ERR_KEY_NOT_FOUND);
    kv_key key = intern(other, "weight");
    CHECK_STATUS(kv_key_name(store, key, &name), KV_ERR_KEY_NOT_FOUND);
    CHECK(strcmp(name, "untouched") == 0);
    kv_key untouched = UNTOUCHED;
    CHECK_STATUS(kv_intern(store, "\xff", &untouched), KV_ERR_INVALID_ARGUMENT);
    CHECK(untouched == UNTOUCHED);
    kv_free(store);
    kv_free(other);
}

static void an_integer_and_a_name_never_alias(void) {
    kv_store *store = open_store("local");
    kv_key name = intern(store, "7");
    init_number(store, 7, 70);
    init_number(store, name & ~NAME_BIT, 80);
    init_number(store, name, 90);
    CHECK(pull_number(store, 7) == 70);
    CHECK(pull_number(store, name & ~NAME_BIT) == 80);
    CHECK(pull_number(store, name) == 90);
    CHECK_STATUS(push_number(store, name, 91), KV_OK);
    CHECK(pull_number(store, name & ~NAME_BIT) == 80);
    kv_free(store);
}

/* Names with one hash, found by a search; the second of a pair is refused in the same store. */
static void colliding_names_are_refused(void) {
    static const char *const pairs[][2] = {
        {"dffpkeddlblkmhfa", "pioccgceckckiifa"},
        {"zydjx7v77kn7f", "57er3422k45qg"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        const char *name = NULL;
        kv_key untouched = UNTOUCHED;
        kv_store *store = open_store("local"), *other = open_store("local");
        CHECK(key_of_name(pairs[i][0]) == key_of_name(pairs[i][1]));
        kv_key key = intern(store, pairs[i][0]);
        init_number(store, key, 5);
        CHECK_STATUS(kv_intern(store, pairs[i][1], &untouched), KV_ERR_NAME_COLLISION);
        CHECK(untouched == UNTOUCHED);
        CHECK(error_says(pairs[i][0]));
        CHECK(error_says(pairs[i][1]));
        CHECK_STATUS(kv_key_name(store, key, &name), KV_OK);
        CHECK(strcmp(name, pairs[i][0]) == 0);
        CHECK(pull_number(store, key) == 5);
        CHECK(intern(other, pairs[i][1]) == key);
        kv_free(store);
        kv_free(other);
    }
}

static void key_info_gives_dtype_and_shape(void) {
    kv_store *store = open_store("local");
    int64_t shape[] = {2, 0, 5}, got[3] = {-1, -1, -1};
    kv_tensor value = kv_tensor_cpu(NULL, KV_BF16, 3, shape);
    kv_key key = 7;
    kv_dtype dtype = 0;
    int32_t ndim = -1;
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
    CHECK_STATUS(kv_key_info(store, 7, &dtype, &ndim, got, 3), KV_OK);
    CHECK(dtype == KV_BF16 && ndim == 3);
    CHECK(memcmp(got, shape, sizeof shape) == 0);

    ndim = -1;
    CHECK_STATUS(kv_key_info(store, 7, NULL, &ndim, NULL, 0), KV_OK);
    CHECK(ndim == 3);
    CHECK_STATUS(kv_key_info(store, 7, NULL, NULL, NULL, 0), KV_OK);

    ndim = -1;
    memset(got, 0xff, sizeof got);
    CHECK_STATUS(kv_key_info(store, 7, NULL, &ndim, got, 2), KV_ERR_BUFFER_TOO_SMALL);
    CHECK(ndim == 3);
    CHECK(got[0] == -1 && got[1] == -1);
    CHECK_STATUS(kv_key_info(store, 7, NULL, NULL, got, -1), KV_ERR_INVALID_ARGUMENT);

    dtype = 0;
    CHECK_STATUS(kv_key_info(store, 8, &dtype, &ndim, got, 3), KV_ERR_KEY_NOT_FOUND);
    CHECK(error_says("key 8"));
    CHECK(dtype == 0);
    init_number(store, 9, 1);
    CHECK_STATUS(kv_key_info(store, 9, &dtype, &ndim, NULL, 0), KV_OK);
    CHECK(dtype == KV_I64 && ndim == 0);
    kv_free(store);
}

/* Integers in ascending order, then names in order of their init: not of their interning. */
static void keys_are_listed_in_processing_order(void) {
    kv_store *store = open_store("local");
    size_t count = 99;
    kv_key keys[8] = {0};
    CHECK_STATUS(kv_keys(store, NULL, 0, &count), KV_OK);
    CHECK(count == 0);
    kv_key a = intern(store, "a"), b = intern(store, "b"), c = intern(store, "c");
    init_number(store, c, 1);
    init_number(store, 30, 1);
    init_number(store, a, 1);
    init_number(store, INT64_MAX, 1);
    init_number(store, 0, 1);
    init_number(store, 4, 1);
    CHECK_STATUS(kv_keys(store, keys, 8, &count), KV_OK);
    kv_key wanted[] = {0, 4, 30, INT64_MAX, c, a};
    CHECK(count == 6);
    CHECK(memcmp(keys, wanted, sizeof wanted) == 0);
    CHECK(keys[6] == 0);

    init_number(store, b, 1);
    CHECK_STATUS(kv_remove(store, &c, 1), KV_OK);
    init_number(store, c, 1);
    kv_key moved[] = {0, 4, 30, INT64_MAX, a, b, c};
    CHECK_STATUS(kv_keys(store, keys, 7, &count), KV_OK);
    CHECK(count == 7);
    CHECK(memcmp(keys, moved, sizeof moved) == 0);

    memset(keys, 0x5a, sizeof keys);
    count = 0;
    CHECK_STATUS(kv_keys(store, keys, 6, &count), KV_ERR_BUFFER_TOO_SMALL);
    CHECK(count == 7);
    CHECK(keys[0] == UNTOUCHED);
    CHECK_STATUS(kv_keys(store, keys, 0, &count), KV_ERR_BUFFER_TOO_SMALL);
    kv_free(store);
}

/* A removed key is gone from the list; a removed name keeps its key and its text. */
static void a_removed_key_is_unknown_and_its_name_is_not(void) {
    kv_store *store = open_store("local");
    const char *name = NULL;
    size_t count = 99;
    kv_key keys[] = {5, intern(store, "weight")};
    init_number(store, keys[0], 1);
    init_number(store, keys[1], 2);
    CHECK_STATUS(kv_remove(store, keys, 2), KV_OK);
    CHECK_STATUS(kv_keys(store, NULL, 0, &count), KV_OK);
    CHECK(count == 0);
    CHECK_STATUS(kv_key_info(store, keys[0], NULL, NULL, NULL, 0), KV_ERR_KEY_NOT_FOUND);
    CHECK_STATUS(kv_key_info(store, keys[1], NULL, NULL, NULL, 0), KV_ERR_KEY_NOT_FOUND);
    CHECK(error_says("\"weight\""));
    CHECK_STATUS(kv_key_name(store, keys[1], &name), KV_OK);
    CHECK(strcmp(name, "weight") == 0);
    CHECK(intern(store, "weight") == keys[1]);
    kv_free(store);
}

int main(void) {
    the_reference_hash_is_right();
    the_key_of_a_name_is_its_siphash();
    names_may_have_any_length();
    a_name_is_copied_and_lives_as_long_as_the_store();
    names_of_unknown_keys_are_not_found();
    an_integer_and_a_name_never_alias();
    colliding_names_are_refused();
    key_info_gives_dtype_and_shape();
    keys_are_listed_in_processing_order();
    a_removed_key_is_unknown_and_its_name_is_not();
    return check_passed("api_key");
}
