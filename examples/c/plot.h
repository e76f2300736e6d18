/* The learning curve, as a picture and as text. */
#ifndef PLOT_H
#define PLOT_H

#include <stdbool.h>
#include <stdio.h>

#include "training.h"

struct curve {
    const struct epoch *epochs; /* in order, from the first */
    int count;                  /* 1 or more */
    double required_accuracy;
};

/* Writes the curve as an SVG file. Returns false with `errno` set if that failed. */
bool plot_svg(const struct curve *curve, const char *path);

/* Draws the curve with plain characters, 76 columns wide. */
void plot_text(const struct curve *curve, FILE *file);

#endif
