#include "network.h"

#include <math.h>

const char *const network_names[NETWORK_PARAMETERS] = {"fc1.weight", "fc1.bias", "fc2.weight",
                                                       "fc2.bias"};

void network_tensors(struct network *network, kv_tensor tensors[NETWORK_PARAMETERS]) {
    static int64_t shape1[] = {DIGIT_PIXELS, HIDDEN_UNITS};
    static int64_t shape2[] = {HIDDEN_UNITS, DIGIT_CLASSES};
    /* A bias has one element for each column of its weight. */
    tensors[0] = kv_tensor_cpu(network->weight1, KV_F32, 2, shape1);
    tensors[1] = kv_tensor_cpu(network->bias1, KV_F32, 1, &shape1[1]);
    tensors[2] = kv_tensor_cpu(network->weight2, KV_F32, 2, shape2);
    tensors[3] = kv_tensor_cpu(network->bias2, KV_F32, 1, &shape2[1]);
}

void network_fill(struct network *network, struct splitmix *numbers) {
    const float scale1 = sqrtf(6.0F / (DIGIT_PIXELS + HIDDEN_UNITS));
    const float scale2 = sqrtf(6.0F / (HIDDEN_UNITS + DIGIT_CLASSES));
    *network = (struct network){0};
    for (int i = 0; i < DIGIT_PIXELS; i++) {
        for (int j = 0; j < HIDDEN_UNITS; j++) {
            network->weight1[i][j] = splitmix_uniform(numbers) * scale1;
        }
    }
    for (int j = 0; j < HIDDEN_UNITS; j++) {
        for (int c = 0; c < DIGIT_CLASSES; c++) {
            network->weight2[j][c] = splitmix_uniform(numbers) * scale2;
        }
    }
}

/* Computes the rectified hidden units and the classes' scores before the softmax. */
static void forward(const struct network *restrict network,
                    const float pixels[restrict DIGIT_PIXELS], float hidden[restrict HIDDEN_UNITS],
                    float scores[restrict DIGIT_CLASSES]) {
    for (int j = 0; j < HIDDEN_UNITS; j++) {
        hidden[j] = network->bias1[j];
    }
    for (int i = 0; i < DIGIT_PIXELS; i++) {
        for (int j = 0; j < HIDDEN_UNITS; j++) {
            hidden[j] += pixels[i] * network->weight1[i][j];
        }
    }
    for (int c = 0; c < DIGIT_CLASSES; c++) {
        scores[c] = network->bias2[c];
    }
    for (int j = 0; j < HIDDEN_UNITS; j++) {
        hidden[j] = hidden[j] > 0.0F ? hidden[j] : 0.0F;
        for (int c = 0; c < DIGIT_CLASSES; c++) {
            scores[c] += hidden[j] * network->weight2[j][c];
        }
    }
}

static int best(const float scores[DIGIT_CLASSES]) {
    int winner = 0;
    for (int c = 1; c < DIGIT_CLASSES; c++) {
        winner = scores[c] > scores[winner] ? c : winner;
    }
    return winner;
}

/* Turns scores into the gradient of the cross entropy by them; returns the cross entropy. */
static double softmax_gradient(float scores[DIGIT_CLASSES], int label) {
    const float highest = scores[best(scores)]; /* taken off, so that expf cannot overflow */
    const float right = scores[label] - highest;
    float sum = 0.0F;
    for (int c = 0; c < DIGIT_CLASSES; c++) {
        scores[c] = expf(scores[c] - highest);
        sum += scores[c];
    }
    for (int c = 0; c < DIGIT_CLASSES; c++) {
        scores[c] /= sum;
    }
    scores[label] -= 1.0F;
    return (double)(logf(sum) - right);
}

double network_gradient(const struct network *restrict network,
                        const float pixels[restrict DIGIT_PIXELS], int label, float scale,
                        struct network *restrict gradient) {
    float hidden[HIDDEN_UNITS];
    float delta2[DIGIT_CLASSES]; /* the loss by the scores */
    float delta1[HIDDEN_UNITS];  /* the loss by the hidden units, before they are rectified */
    forward(network, pixels, hidden, delta2);
    const double loss = softmax_gradient(delta2, label);
    for (int c = 0; c < DIGIT_CLASSES; c++) {
        delta2[c] *= scale;
        gradient->bias2[c] += delta2[c];
    }
    for (int j = 0; j < HIDDEN_UNITS; j++) {
        float sum = 0.0F;
        for (int c = 0; c < DIGIT_CLASSES; c++) {
            sum += network->weight2[j][c] * delta2[c];
            gradient->weight2[j][c] += hidden[j] * delta2[c];
        }
        delta1[j] = hidden[j] > 0.0F ? sum : 0.0F;
        gradient->bias1[j] += delta1[j];
    }
    for (int i = 0; i < DIGIT_PIXELS; i++) {
        for (int j = 0; j < HIDDEN_UNITS; j++) {
            gradient->weight1[i][j] += pixels[i] * delta1[j];
        }
    }
    return loss;
}

int network_classify(const struct network *network, const float pixels[DIGIT_PIXELS]) {
    float hidden[HIDDEN_UNITS];
    float scores[DIGIT_CLASSES];
    forward(network, pixels, hidden, scores);
    return best(scores);
}
