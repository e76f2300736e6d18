/* Images of handwritten digits with their labels. */
#ifndef DIGITS_H
#define DIGITS_H

#include <stddef.h>

enum { DIGIT_PIXELS = 64, DIGIT_CLASSES = 10 };

struct digits {
    size_t count;
    float (*pixels)[DIGIT_PIXELS]; /* 0 is white, 1 is black */
    int *labels;                   /* 0 to 9 */
};

/*
 * Reads a table with 64 pixels from 0 to 16 and the label in each line; every fifth line, the
 * first included, is held out. A file that is not like that ends the program with a message.
 */
void digits_read(const char *path, struct digits *train, struct digits *held_out);

void digits_free(struct digits *digits);

#endif
