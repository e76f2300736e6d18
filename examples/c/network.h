/* A network of two layers: 64 pixels, 64 rectified units, 10 classes with softmax. */
#ifndef NETWORK_H
#define NETWORK_H

#include <kvstore.h>

#include "digits.h"
#include "splitmix.h"

enum { HIDDEN_UNITS = 64, NETWORK_PARAMETERS = 4 };

/* Weights, or the gradients of weights: floats only, so that two of them compare with memcmp. */
struct network {
    float weight1[DIGIT_PIXELS][HIDDEN_UNITS];
    float bias1[HIDDEN_UNITS];
    float weight2[HIDDEN_UNITS][DIGIT_CLASSES];
    float bias2[DIGIT_CLASSES];
};

/* The names of the parameters, in the order of the struct. */
extern const char *const network_names[NETWORK_PARAMETERS];

/* Views the parameters, in the order of the struct, as tensors. */
void network_tensors(struct network *network, kv_tensor tensors[NETWORK_PARAMETERS]);

void network_fill(struct network *network, struct splitmix *numbers);

/*
 * Adds to `gradient` the gradient of one sample's cross entropy, times `scale`, and returns the
 * cross entropy.
 */
double network_gradient(const struct network *restrict network,
                        const float pixels[restrict DIGIT_PIXELS], int label, float scale,
                        struct network *restrict gradient);

int network_classify(const struct network *network, const float pixels[DIGIT_PIXELS]);

#endif
