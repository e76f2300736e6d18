/*
 * Trains a small network on handwritten digits, data-parallel: four workers share the weights
 * through one store. Then trains it again with other numbers of threads, to show that the weights
 * come out the same, bit for bit.
 */
#define _POSIX_C_SOURCE 200809L /* isatty, clock_gettime */

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "plot.h"
#include "training.h"
#include "try.h"

enum { MOST_EPOCHS = 10000, LINES_WITHOUT_TERMINAL = 6, USAGE_STATUS = 2 };

static const double required_accuracy = 0.96;

struct arguments {
    const char *data;
    const char *picture; /* NULL: none */
    int epochs;
    bool quiet;
};

/* The epochs of the run that is shown, and how to show them. */
struct progress {
    struct epoch *epochs;
    int count;
    bool quiet;
    bool terminal;
};

static void usage(void) {
    fputs("usage: train_digits DATA [SVG] [--epochs N] [--quiet]\n"
          "  DATA        table of the digits: 64 pixels and the label in each line\n"
          "  SVG         draw the learning curve into this file\n"
          "  --epochs N  passes over the data, 1 to 10000; default 30\n"
          "  --quiet     print the results only\n",
          stderr);
    exit(USAGE_STATUS);
}

static int parse_epochs(const char *text) {
    char *end = NULL;
    const long epochs = text == NULL ? 0 : strtol(text, &end, 10);
    if (epochs < 1 || epochs > MOST_EPOCHS || *end != '\0') {
        usage();
    }
    return (int)epochs;
}

static struct arguments parse(char **words) {
    struct arguments arguments = {.epochs = 30};
    for (char **word = words + 1; *word != NULL; word++) {
        if (strcmp(*word, "--quiet") == 0) {
            arguments.quiet = true;
        } else if (strcmp(*word, "--epochs") == 0) {
            arguments.epochs = parse_epochs(*++word);
        } else if (**word == '-') {
            usage();
        } else if (arguments.data == NULL) {
            arguments.data = *word;
        } else if (arguments.picture == NULL) {
            arguments.picture = *word;
        } else {
            usage();
        }
    }
    if (arguments.data == NULL) {
        usage();
    }
    return arguments;
}

/* On a terminal one line that is written over; elsewhere a few lines. */
static void show_epoch(void *context, const struct epoch *epoch) {
    struct progress *progress = context;
    progress->epochs[epoch->number - 1] = *epoch;
    const int every = progress->count / LINES_WITHOUT_TERMINAL + 1;
    const bool last = epoch->number == progress->count;
    const bool shown =
        progress->terminal || epoch->number == 1 || last || epoch->number % every == 0;
    if (progress->quiet || !shown) {
        return;
    }
    const int width = snprintf(NULL, 0, "%d", progress->count);
    printf("%sepoch %*d/%d   loss %.4f   accuracy %.4f   %7.1f MB/s through the store%s",
           progress->terminal ? "\r" : "", width, epoch->number, progress->count, epoch->loss,
           epoch->accuracy, epoch->megabytes_per_second, progress->terminal && !last ? "" : "\n");
    fflush(stdout);
}

static void draw(const struct curve *curve, const struct arguments *arguments) {
    if (!arguments->quiet) {
        putchar('\n');
        plot_text(curve, stdout);
    }
    if (arguments->picture == NULL) {
        return;
    }
    if (!plot_svg(curve, arguments->picture)) {
        fprintf(stderr, "%s: %s\n", arguments->picture, strerror(errno));
        exit(EXIT_FAILURE);
    }
    printf("\nLearning curve: %s\n", arguments->picture);
}

/* A short number for people to compare by eye: FNV-1a over the bytes of the weights. */
static uint64_t fingerprint(const struct network *weights) {
    const unsigned char *bytes = (const unsigned char *)weights;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof *weights; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/*
 * One way to train: none of them may change a bit. (The store shares the work on a key among its
 * threads only when the key is far larger than these.)
 */
struct way {
    const char *text;
    int workers;
    const char *store_threads;
};

/* The first is the run that is shown. */
static const struct way ways[] = {
    {"four workers, store with 1 thread", QUARTERS, "1"},
    {"four workers, store with 2 threads", QUARTERS, "2"},
    {"four workers, store with 4 threads", QUARTERS, "4"},
    {"one worker, the quarters in turn", 1, "1"},
};

enum { WAYS = sizeof ways / sizeof ways[0] };

static bool run_way(const struct way *way, struct setup setup, struct network *weights) {
    setup.workers = way->workers;
    setup.store_threads = way->store_threads;
    const bool agreed = train(&setup, weights);
    if (!agreed) {
        fprintf(stderr, "%s: the workers ended with different weights\n", way->text);
    }
    return agreed;
}

/* Trains in every other way, and says whether all end with the weights of the first. */
static bool verify(const struct setup *setup, const struct network *first) {
    bool same = true;
    printf("\nThe same training in other ways, and a hash of the weights it ends with:\n");
    printf("  %-36s %016llx\n", ways[0].text, (unsigned long long)fingerprint(first));
    for (int i = 1; i < WAYS; i++) {
        struct network weights;
        same = run_way(&ways[i], *setup, &weights) && same;
        same = memcmp(&weights, first, sizeof weights) == 0 && same;
        printf("  %-36s %016llx\n", ways[i].text, (unsigned long long)fingerprint(&weights));
    }
    return same;
}

/* Trains the first way, shows it, then the others; returns whether all results are as required. */
static bool demonstrate(const struct arguments *arguments, const struct setup *setup,
                        struct epoch *epochs) {
    struct progress progress = {epochs, arguments->epochs, arguments->quiet,
                                isatty(STDOUT_FILENO) == 1};
    struct setup shown = *setup;
    shown.report = show_epoch;
    shown.context = &progress;
    struct network weights;
    bool same = run_way(&ways[0], shown, &weights);
    draw(&(struct curve){epochs, arguments->epochs, required_accuracy}, arguments);
    same = verify(setup, &weights) && same;

    const double accuracy = epochs[arguments->epochs - 1].accuracy;
    const bool accurate = accuracy >= required_accuracy;
    printf("\nHeld-out accuracy: %.4f, required %.2f: %s\n", accuracy, required_accuracy,
           accurate ? "passed" : "FAILED");
    printf("Bit-identical weights in all %d runs: %s\n", (int)WAYS, same ? "passed" : "FAILED");
    return accurate && same;
}

int main(int count, char **words) {
    (void)count;
    const double began = clock_seconds();
    const struct arguments arguments = parse(words);
    struct digits digits, held_out;
    digits_read(arguments.data, &digits, &held_out);
    if (digits.count < BATCH) {
        fprintf(stderr, "%s: too few images for a batch of %d\n", arguments.data, BATCH);
        return EXIT_FAILURE;
    }
    struct epoch *epochs = calloc((size_t)arguments.epochs, sizeof *epochs);
    if (epochs == NULL) {
        fprintf(stderr, "no memory for %d epochs\n", arguments.epochs);
        return EXIT_FAILURE;
    }
    printf("libkvstore %s: %zu images of handwritten digits to train on, %zu held out\n",
           kv_version(), digits.count, held_out.count);
    const struct setup setup = {
        .train = &digits, .held_out = &held_out, .epochs = arguments.epochs};
    const bool passed = demonstrate(&arguments, &setup, epochs);
    printf("%.1f seconds\n", clock_seconds() - began);
    free(epochs);
    digits_free(&digits);
    digits_free(&held_out);
    return passed ? EXIT_SUCCESS : EXIT_FAILURE;
}
