#include "digits.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_INK = 16, HELD_OUT_EVERY = 5, LINE_BYTES = 1024 };

/* Reads a whole number from 0 to `most` and the `end` behind it; moves `text` past both. */
static bool read_number(const char **text, long most, char end, int *number) {
    char *rest = NULL;
    errno = 0;
    long value = strtol(*text, &rest, 10);
    if (rest == *text || errno != 0 || value < 0 || value > most || *rest != end) {
        return false;
    }
    *text = rest + 1;
    *number = (int)value;
    return true;
}

static bool read_sample(const char *line, float pixels[DIGIT_PIXELS], int *label) {
    for (int i = 0; i < DIGIT_PIXELS; i++) {
        int ink = 0;
        if (!read_number(&line, MOST_INK, ',', &ink)) {
            return false;
        }
        pixels[i] = (float)ink / MOST_INK;
    }
    return read_number(&line, DIGIT_CLASSES - 1, '\0', label);
}

/* Makes room for one sample more; the room doubles whenever the count reaches a power of two. */
static void grow(struct digits *digits) {
    if ((digits->count & (digits->count - 1)) != 0) {
        return;
    }
    size_t room = digits->count == 0 ? 1 : 2 * digits->count;
    void *pixels = realloc(digits->pixels, room * sizeof *digits->pixels);
    void *labels = realloc(digits->labels, room * sizeof *digits->labels);
    if (pixels == NULL || labels == NULL) {
        fprintf(stderr, "no memory for %zu images\n", room);
        exit(EXIT_FAILURE);
    }
    digits->pixels = pixels;
    digits->labels = labels;
}

void digits_read(const char *path, struct digits *train, struct digits *held_out) {
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(EXIT_FAILURE);
    }
    *train = (struct digits){0};
    *held_out = (struct digits){0};
    char line[LINE_BYTES];
    for (size_t index = 0; fgets(line, sizeof line, file) != NULL; index++) {
        line[strcspn(line, "\r\n")] = '\0';
        struct digits *digits = index % HELD_OUT_EVERY == 0 ? held_out : train;
        grow(digits);
        if (!read_sample(line, digits->pixels[digits->count], &digits->labels[digits->count])) {
            fprintf(stderr, "%s:%zu: not 64 numbers from 0 to 16 and a label\n", path, index + 1);
            exit(EXIT_FAILURE);
        }
        digits->count++;
    }
    if (ferror(file)) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(EXIT_FAILURE);
    }
    fclose(file);
}

void digits_free(struct digits *digits) {
    free(digits->pixels);
    free(digits->labels);
    *digits = (struct digits){0};
}
