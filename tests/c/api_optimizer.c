/* Optimizers: rules and options by name, good and bad ones, and what is said about them. */
#include "support.h"

#include <math.h>

/* A key of one float64. */
static kv_tensor float_tensor(double *number) {
    return kv_tensor_cpu(number, KV_F64, 0, NULL);
}

static void init_float(kv_store *store, kv_key key, double number) {
    kv_tensor value = float_tensor(&number);
    CHECK_STATUS(kv_init(store, &key, &value, 1), KV_OK);
}

static void push_float(kv_store *store, kv_key key, double number) {
    kv_tensor value = float_tensor(&number);
    CHECK_STATUS(kv_push(store, &key, &value, 1, 0, NULL), KV_OK);
}

static double pull_float(kv_store *store, kv_key key) {
    double number = NAN;
    kv_tensor out = float_tensor(&number);
    CHECK_STATUS(kv_pull(store, &key, &out, 1, 0, NULL), KV_OK);
    return number;
}

static int is_near(double found, double wanted) {
    return fabs(found - wanted) <= 1e-12 * fmax(1, fabs(wanted));
}

/* The call is refused with this status, and the message contains the text. */
#define CHECK_REFUSED(call, status, text) \
    do {                                  \
        CHECK_STATUS(call, status);       \
        CHECK(error_says(text));          \
    } while (0)

static void every_rule_is_known(const char *type) {
    static const char *const rules[] = {
        "sgd",     "momentum", "nag",      "adam", "adamw", "adamax", "nadam",
        "adagrad", "rmsprop",  "adadelta", "ftrl", "ftml",  "signum", "lamb",
        "lars",    "dcasgd",   "lion",     "test", "groupadagrad",
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        kv_store *store = open_store(type);
        init_float(store, 1, 0.5);
        CHECK_STATUS(kv_set_optimizer(store, rules[i], "learning_rate=0.5"), KV_OK);
        push_float(store, 1, 0.25);
        push_float(store, 1, 0.5);
        double value = pull_float(store, 1);
        CHECK(isfinite(value));
        CHECK(value != 0.5);
        kv_free(store);
    }
}

static void steps_are_those_of_the_formula(const char *type) {
    kv_store *store = open_store(type);
    double value = 1, momentum = 0;
    init_float(store, 7, value);
    CHECK_STATUS(kv_set_optimizer(store, "SGD", " learning_rate = 0.1, momentum=0.9,wd=0.01 "),
                 KV_OK);
    for (int i = 1; i <= 20; i++) {
        double gradient = i % 5 - 1.5;
        momentum = 0.9 * momentum - 0.1 * (gradient + 0.01 * value);
        value += momentum;
        push_float(store, 7, gradient);
        CHECK(is_near(pull_float(store, 7), value));
    }
    /* State goes on under another learning rate. */
    CHECK_STATUS(kv_set_hyperparameter(store, "lr", 0.25), KV_OK);
    CHECK_STATUS(kv_set_hyperparameter(store, "learning_rate", 0.5), KV_OK);
    momentum = 0.9 * momentum - 0.5 * (1 + 0.01 * value);
    value += momentum;
    push_float(store, 7, 1);
    CHECK(is_near(pull_float(store, 7), value));
    /* A new optimizer starts without it. */
    CHECK_STATUS(kv_set_optimizer(store, "sgd", "learning_rate=0.1,momentum=0.9"), KV_OK);
    push_float(store, 7, 1);
    CHECK(is_near(pull_float(store, 7), value - 0.1));
    kv_free(store);
}

static void defaults_need_no_list(const char *type) {
    static const char *const empty[] = {NULL, "", "  ", ","};
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
        kv_store *store = open_store(type);
        init_float(store, 1, 0);
        CHECK_STATUS(kv_set_optimizer(store, "sgd", empty[i]), KV_OK);
        push_float(store, 1, 1);
        CHECK(is_near(pull_float(store, 1), -0.01));
        kv_free(store);
    }
}

static void single_keys_have_multipliers(const char *type) {
    kv_store *store = open_store(type);
    kv_key name = 0;
    CHECK_STATUS(kv_intern(store, "fc1.bias", &name), KV_OK);
    CHECK_STATUS(kv_set_optimizer(store, "sgd", "learning_rate=0.1,wd=0.5"), KV_OK);
    /* The keys need not be there yet. */
    CHECK_STATUS(kv_set_key_hyperparameter(store, 2, "lr_mult", 3), KV_OK);
    CHECK_STATUS(kv_set_key_hyperparameter(store, name, "wd_mult", 0), KV_OK);
    init_float(store, 1, 1);
    init_float(store, 2, 1);
    init_float(store, name, 1);
    push_float(store, 1, 1);
    push_float(store, 2, 1);
    push_float(store, name, 1);
    CHECK(is_near(pull_float(store, 1), 1 - 0.1 * 1.5));
    CHECK(is_near(pull_float(store, 2), 1 - 0.3 * 1.5));
    CHECK(is_near(pull_float(store, name), 1 - 0.1));
    kv_free(store);
}

static void schedules_follow_the_count_of_a_key(const char *type) {
    kv_store *store = open_store(type);
    double expected = 0;
    init_float(store, 1, 0);
    init_float(store, 2, 0);
    CHECK_STATUS(kv_set_optimizer(store, "sgd",
                                  "learning_rate=1, lr_scheduler=multifactor, steps=[2,4],"
                                  "factor=0.5"),
                 KV_OK);
    for (int i = 1; i <= 6; i++) {
        expected += i <= 2 ? 1 : i <= 4 ? 0.5 : 0.25;
        push_float(store, 1, -1);
        CHECK(is_near(pull_float(store, 1), expected));
    }
    push_float(store, 2, -1);
    CHECK(is_near(pull_float(store, 2), 1));
    kv_free(store);
}

static void unknown_rules_are_answered_with_near_ones(kv_store *store) {
    CHECK_REFUSED(kv_set_optimizer(store, "sdg", NULL), KV_ERR_OPTION, "did you mean sgd or");
    CHECK(error_says("set_optimizer: there is no optimizer \"sdg\""));
    CHECK_REFUSED(kv_set_optimizer(store, "nothing_like_it", NULL), KV_ERR_OPTION,
                  "the optimizers are sgd, momentum, nag, adam,");
    CHECK_REFUSED(kv_set_optimizer(store, "lbsgd", NULL), KV_ERR_OPTION, "use lars");
    CHECK_REFUSED(kv_set_optimizer(store, "sgld", NULL), KV_ERR_OPTION, "updater");
    CHECK_REFUSED(kv_set_optimizer(store, "ccsgd", NULL), KV_ERR_OPTION, "another name of sgd");
    CHECK_REFUSED(kv_set_optimizer(store, "sg\xff", NULL), KV_ERR_INVALID_ARGUMENT, "UTF-8");
    CHECK_REFUSED(kv_set_optimizer(store, "sgd", "wd=\xc3\x28"), KV_ERR_INVALID_ARGUMENT, "UTF-8");
    CHECK_REFUSED(kv_set_optimizer(store, NULL, NULL), KV_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(kv_set_optimizer(NULL, "sgd", NULL), KV_ERR_INVALID_ARGUMENT, "NULL");
}

static void bad_options_say_what_would_do(kv_store *store) {
    static const char *const bad[][2] = {
        {"learning_rte=1", "did you mean learning_rate?"},
        {"learning_rate", "not of the form name=value"},
        {"learning_rate=-1", "learning_rate is -1; it must be a number from 0"},
        {"learning_rate=fast", "learning_rate is \"fast\""},
        {"wd=1,wd=1", "wd is given twice"},
        {"momentum=1", "momentum is 1; it must be a number from 0 to below 1"},
        {"lr_mult=1", "lr_mult is set for single keys"},
        {"lr_scheduler=cosine", "lr_scheduler=cosine needs max_update"},
        {"lr_scheduler=slow", "constant or factor or multifactor or poly or cosine"},
        {"step=1", "step is no option of lr_scheduler=constant"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_REFUSED(kv_set_optimizer(store, "sgd", bad[i][0]), KV_ERR_OPTION, bad[i][1]);
        CHECK(error_says("set_optimizer: optimizer sgd: "));
    }
}

static void bad_hyperparameters_say_what_would_do(kv_store *store) {
    static const char *const where = "set_hyperparameter: optimizer sgd: ";
    CHECK_REFUSED(kv_set_hyperparameter(store, "wd", -1), KV_ERR_OPTION, where);
    CHECK(error_says("wd is -1; it must be a number from 0"));
    CHECK_REFUSED(kv_set_hyperparameter(store, "wd", NAN), KV_ERR_OPTION, "wd is NaN");
    CHECK_REFUSED(kv_set_hyperparameter(store, "wd", INFINITY), KV_ERR_OPTION, "wd is inf");
    CHECK_REFUSED(kv_set_hyperparameter(store, "momntum", 0), KV_ERR_OPTION,
                  "did you mean momentum?");
    CHECK_REFUSED(kv_set_hyperparameter(store, "lr_scheduler", 1), KV_ERR_OPTION,
                  "set with the optimizer");
    CHECK_REFUSED(kv_set_hyperparameter(store, NULL, 1), KV_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(kv_set_hyperparameter(NULL, "wd", 1), KV_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(kv_set_key_hyperparameter(store, 1, "momentum", 1), KV_ERR_OPTION,
                  "there are lr_mult and wd_mult");
    CHECK_REFUSED(kv_set_key_hyperparameter(store, 1, "lr_mult", -1), KV_ERR_OPTION,
                  "set_key_hyperparameter: lr_mult is -1");
    CHECK_REFUSED(kv_set_key_hyperparameter(store, 1, "wd_mult", NAN), KV_ERR_OPTION, "NaN");
    CHECK_REFUSED(kv_set_key_hyperparameter(store, 1, NULL, 1), KV_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(kv_set_key_hyperparameter(NULL, 1, "lr_mult", 1), KV_ERR_INVALID_ARGUMENT,
                  "NULL");
}

/* All of it leaves the rule, its options and its state alone. */
static void refused_calls_change_nothing(const char *type) {
    kv_store *store = open_store(type);
    init_float(store, 1, 0);
    CHECK_STATUS(kv_set_optimizer(store, "sgd", "learning_rate=1,momentum=0.5"), KV_OK);
    push_float(store, 1, -1);
    unknown_rules_are_answered_with_near_ones(store);
    bad_options_say_what_would_do(store);
    bad_hyperparameters_say_what_would_do(store);
    push_float(store, 1, -1);
    CHECK(is_near(pull_float(store, 1), 1 + 1.5));
    kv_free(store);
}

static void without_an_optimizer_there_is_nothing_to_change(const char *type) {
    kv_store *store = open_store(type);
    CHECK_REFUSED(kv_set_hyperparameter(store, "learning_rate", 1), KV_ERR_INVALID_ARGUMENT,
                  "no optimizer is set");
    CHECK_REFUSED(kv_set_key_hyperparameter(store, 1, "lr_mult", 1), KV_ERR_INVALID_ARGUMENT,
                  "no optimizer is set");
    CHECK_STATUS(kv_set_optimizer(store, "sgd", NULL), KV_OK);
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    CHECK_REFUSED(kv_set_hyperparameter(store, "learning_rate", 1), KV_ERR_INVALID_ARGUMENT,
                  "no optimizer is set");
    kv_free(store);
}

/* Weights under one rule, an embedding under another, a counter of integers under none. */
static void single_keys_have_rules_of_their_own(const char *type) {
    kv_store *store = open_store(type);
    const kv_key weight = 1, other = 2, counter = 3, unknown = 9;
    const kv_key own[] = {other, counter};
    CHECK_STATUS(kv_set_optimizer(store, "sgd", "learning_rate=0.5"), KV_OK);
    /* Before the keys are there; twice in a list is once. */
    CHECK_STATUS(kv_set_optimizer_for(store, own, 2, "NONE", ""), KV_OK);
    init_float(store, weight, 1);
    init_float(store, other, 1);
    init_number(store, counter, 10);
    push_float(store, weight, 1);
    push_float(store, other, 7);
    CHECK_STATUS(push_number(store, counter, 4), KV_OK);
    CHECK(is_near(pull_float(store, weight), 0.5));
    CHECK(pull_float(store, other) == 7);
    CHECK(pull_number(store, counter) == 4);

    CHECK_STATUS(kv_set_optimizer_for(store, (kv_key[]){other, unknown, other}, 3, "sgd",
                                      "learning_rate=0.25,momentum=0.5"),
                 KV_OK);
    push_float(store, other, 1);
    push_float(store, other, 1);
    CHECK(is_near(pull_float(store, other), 7 - 0.25 - 0.375));
    /* An option of the key's own rule, whose state stays; the store's is as it was. */
    CHECK_STATUS(kv_set_key_hyperparameter(store, other, "learning_rate", 0.5), KV_OK);
    CHECK_STATUS(kv_set_key_hyperparameter(store, other, "lr_mult", 2), KV_OK);
    push_float(store, other, 1);
    CHECK(is_near(pull_float(store, other), 7 - 0.25 - 0.375 - (0.1875 + 1)));
    CHECK_STATUS(kv_set_hyperparameter(store, "learning_rate", 0.25), KV_OK);
    push_float(store, weight, 1);
    CHECK(is_near(pull_float(store, weight), 0.25));
    CHECK_REFUSED(kv_set_key_hyperparameter(store, counter, "lr_mult", 2), KV_ERR_INVALID_ARGUMENT,
                  "the key has no optimizer");

    /* An updater is for the keys without a rule of their own. */
    CHECK_STATUS(kv_set_updater(store, add_number, NULL, NULL), KV_OK);
    CHECK_STATUS(push_number(store, counter, 5), KV_OK);
    CHECK(pull_number(store, counter) == 5);
    CHECK_STATUS(kv_set_optimizer_for(store, &counter, 1, "store", NULL), KV_OK);
    CHECK_STATUS(push_number(store, counter, 5), KV_OK);
    CHECK(pull_number(store, counter) == 10);
    kv_free(store);
}

static void refused_rules_of_keys_change_nothing(const char *type) {
    kv_store *store = open_store(type);
    const kv_key keys[] = {1, 3};
    init_float(store, 1, 1);
    init_number(store, 3, 10);
    CHECK_REFUSED(kv_set_optimizer_for(store, keys, 2, "adam", NULL), KV_ERR_DTYPE_MISMATCH,
                  "set_optimizer_for: key 3 is int64[]: the optimizer adam cannot change int64");
    CHECK_REFUSED(kv_set_optimizer_for(store, keys, 1, "adm", NULL), KV_ERR_OPTION,
                  "did you mean adam or");
    CHECK_REFUSED(kv_set_optimizer_for(store, keys, 1, "sgd", "wd=-1"), KV_ERR_OPTION,
                  "set_optimizer_for: optimizer sgd: wd is -1");
    CHECK_REFUSED(kv_set_optimizer_for(store, keys, 1, "none", "wd=1"), KV_ERR_OPTION,
                  "none takes no options");
    CHECK_REFUSED(kv_set_optimizer_for(store, keys, 1, "Store", "wd=1"), KV_ERR_OPTION,
                  "store takes no options");
    CHECK_STATUS(kv_set_optimizer_for(store, NULL, 0, "sgd", NULL), KV_OK);
    push_float(store, 1, 5);
    CHECK(pull_float(store, 1) == 5);
    kv_free(store);
}

static void integers_are_refused(const char *type) {
    kv_store *store = open_store(type);
    init_number(store, 3, 10);
    CHECK_REFUSED(kv_set_optimizer(store, "adam", NULL), KV_ERR_DTYPE_MISMATCH,
                  "key 3 is int64[]: the optimizer adam cannot change int64");
    CHECK_STATUS(push_number(store, 3, 4), KV_OK);
    CHECK(pull_number(store, 3) == 4);
    kv_key key = 3, out_key = 3;
    CHECK_STATUS(kv_remove(store, &key, 1), KV_OK);
    CHECK_STATUS(kv_set_optimizer(store, "adam", NULL), KV_OK);
    int64_t number = 1;
    kv_tensor value = number_tensor(&number);
    CHECK_REFUSED(kv_init(store, &key, &value, 1), KV_ERR_DTYPE_MISMATCH, "init: key 3");
    CHECK_REFUSED(kv_broadcast(store, &key, &value, 1, &out_key, &value, 1, 0, NULL),
                  KV_ERR_DTYPE_MISMATCH, "broadcast: key 3");
    size_t count = 1;
    CHECK_STATUS(kv_keys(store, NULL, 0, &count), KV_OK);
    CHECK(count == 0);
    kv_free(store);
}

static void an_optimizer_ends_an_updater(const char *type) {
    kv_store *store = open_store(type);
    atomic_int drops = 0;
    CHECK_STATUS(kv_set_updater(store, add_number, &drops, count_drop), KV_OK);
    CHECK_STATUS(kv_set_optimizer(store, "nothing", NULL), KV_ERR_OPTION);
    CHECK(atomic_load(&drops) == 0);
    CHECK_STATUS(kv_set_optimizer(store, "test", NULL), KV_OK);
    CHECK(atomic_load(&drops) == 1);
    init_float(store, 1, 1);
    push_float(store, 1, 2);
    CHECK(is_near(pull_float(store, 1), 3));
    /* NULL assigns again. */
    CHECK_STATUS(kv_set_updater(store, NULL, NULL, NULL), KV_OK);
    push_float(store, 1, 2);
    CHECK(is_near(pull_float(store, 1), 2));
    kv_free(store);
}

/* Names and lists are copied: the buffers may change as soon as the call has returned. */
static void arguments_are_copied(const char *type) {
    char name[] = "test", params[] = "rescale_grad=2";
    kv_store *store = open_store(type);
    CHECK_STATUS(kv_set_optimizer(store, name, params), KV_OK);
    memset(name, 'x', sizeof name - 1);
    memset(params, 'x', sizeof params - 1);
    init_float(store, 1, 1);
    push_float(store, 1, 2);
    CHECK(is_near(pull_float(store, 1), 5));
    kv_free(store);
}

int main(void) {
    for (int i = 0; i < STORE_TYPE_COUNT; i++) {
        every_rule_is_known(STORE_TYPES[i]);
        steps_are_those_of_the_formula(STORE_TYPES[i]);
        defaults_need_no_list(STORE_TYPES[i]);
        single_keys_have_multipliers(STORE_TYPES[i]);
        single_keys_have_rules_of_their_own(STORE_TYPES[i]);
        refused_rules_of_keys_change_nothing(STORE_TYPES[i]);
        schedules_follow_the_count_of_a_key(STORE_TYPES[i]);
        refused_calls_change_nothing(STORE_TYPES[i]);
        without_an_optimizer_there_is_nothing_to_change(STORE_TYPES[i]);
        integers_are_refused(STORE_TYPES[i]);
        an_optimizer_ends_an_updater(STORE_TYPES[i]);
        arguments_are_copied(STORE_TYPES[i]);
    }
    return check_passed("api_optimizer");
}
