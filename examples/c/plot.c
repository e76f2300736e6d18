#include "plot.h"

#include <math.h>
#include <string.h>

/* The range of a scale and the distance of its ticks. */
struct axis {
    double low, high, step;
};

/* Ticks at 1, 2 or 5 times a power of ten, about `ticks` of them, from below `low` to `high`. */
static struct axis axis_over(double low, double high, int ticks) {
    const double wanted = fmax(high - low, 1e-6) / ticks;
    const double power = pow(10.0, floor(log10(wanted)));
    static const double factors[] = {1.0, 2.0, 5.0, 10.0};
    int i = 0;
    while (i < 3 && power * factors[i] < wanted) {
        i++;
    }
    const double step = power * factors[i];
    return (struct axis){floor(low / step) * step, ceil(high / step - 1e-9) * step, step};
}

static double fraction(const struct axis *axis, double value) {
    return (value - axis->low) / (axis->high - axis->low);
}

/* A panel shows one number of each epoch. */
struct panel {
    const char *title;
    const char *colour;
    double (*value)(const struct epoch *epoch);
    struct axis axis;
    double left;  /* in the picture */
    double label; /* how far below the end of the line its number stands */
};

static double loss_of(const struct epoch *epoch) {
    return epoch->loss;
}

static double accuracy_of(const struct epoch *epoch) {
    return epoch->accuracy;
}

enum { PANELS = 2, LOSS = 0, ACCURACY = 1 };

static void make_panels(const struct curve *curve, struct panel panels[PANELS]) {
    double most_loss = 0.0;
    double least_accuracy = curve->required_accuracy;
    for (int i = 0; i < curve->count; i++) {
        most_loss = fmax(most_loss, curve->epochs[i].loss);
        least_accuracy = fmin(least_accuracy, curve->epochs[i].accuracy);
    }
    panels[LOSS] =
        (struct panel){"training loss", "#c2410c", loss_of, axis_over(0.0, most_loss, 4), 64.0,
                       -10.0};
    panels[ACCURACY] = (struct panel){"held-out accuracy", "#1d4ed8", accuracy_of,
                                      axis_over(least_accuracy, 1.0, 4), 448.0, 26.0};
}

/* Sizes of the picture and of the area of one panel in it. */
static const double picture_width = 800.0, picture_height = 352.0;
static const double area_width = 312.0, area_height = 220.0, area_top = 72.0;

static double across(const struct panel *panel, const struct axis *epochs, double epoch) {
    return panel->left + fraction(epochs, epoch) * area_width;
}

static double down(const struct panel *panel, double value) {
    return area_top + (1.0 - fraction(&panel->axis, value)) * area_height;
}

static int tick_count(const struct axis *axis) {
    return (int)lround((axis->high - axis->low) / axis->step);
}

static void svg_value_axis(FILE *file, const struct panel *panel) {
    const int decimals = panel->axis.step < 0.1 ? 2 : 1;
    for (int i = 0; i <= tick_count(&panel->axis); i++) {
        const double value = panel->axis.low + i * panel->axis.step;
        const double y = down(panel, value);
        fprintf(file, "<path class=\"grid\" d=\"M%.1f %.1fh%.1f\"/>\n", panel->left, y, area_width);
        fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.*f</text>\n",
                panel->left - 9.0, y + 4.0, decimals, value);
    }
}

static void svg_epoch_axis(FILE *file, const struct panel *panel, const struct axis *epochs) {
    const double bottom = area_top + area_height;
    for (int i = 0; i <= tick_count(epochs); i++) {
        const double epoch = epochs->low + i * epochs->step;
        const double x = across(panel, epochs, epoch);
        fprintf(file, "<path class=\"axis\" d=\"M%.1f %.1fv5\"/>\n", x, bottom);
        fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.0f</text>\n", x,
                bottom + 19.0, epoch);
    }
    fprintf(file, "<path class=\"axis\" d=\"M%.1f %.1fv%.1fh%.1f\"/>\n", panel->left, area_top,
            area_height, area_width);
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">epoch</text>\n",
            panel->left + area_width / 2.0, bottom + 39.0);
}

/* Draws the line, with a dot and the number at its end. */
static void svg_line(FILE *file, const struct panel *panel, const struct axis *epochs,
                     const struct curve *curve) {
    const struct epoch *last = &curve->epochs[curve->count - 1];
    const double x = across(panel, epochs, last->number);
    const double y = down(panel, panel->value(last));
    fprintf(file, "<polyline class=\"line\" stroke=\"%s\" points=\"", panel->colour);
    for (int i = 0; i < curve->count; i++) {
        const struct epoch *epoch = &curve->epochs[i];
        fprintf(file, "%s%.1f,%.1f", i == 0 ? "" : " ", across(panel, epochs, epoch->number),
                down(panel, panel->value(epoch)));
    }
    fprintf(file, "\"/>\n<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", x, y,
            panel->colour);
    fprintf(file,
            "<text class=\"end\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\" fill=\"%s\">%.4f"
            "</text>\n",
            x, y + panel->label, panel->colour, panel->value(last));
}

/* Explains a line at the top of the picture, from `x` on. */
static void svg_legend(FILE *file, double x, const char *class, const char *colour,
                       const char *text) {
    fprintf(file, "<path class=\"%s\" stroke=\"%s\" d=\"M%.1f 47h24\"/>\n", class, colour, x);
    fprintf(file, "<text x=\"%.1f\" y=\"51\">%s</text>\n", x + 32.0, text);
}

static void svg_head(FILE *file) {
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
            "height=\"%.0f\" role=\"img\">\n",
            picture_width, picture_height, picture_width, picture_height);
    fputs("<title>Learning curve of a network trained on handwritten digits</title>\n"
          "<style>\n"
          "text { font: 12px 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif; }\n"
          "text:not([fill]) { fill: #475569; }\n"
          "text.title { font-size: 15px; font-weight: bold; fill: #0f172a; }\n"
          "text.end { font-weight: bold; }\n"
          ".axis { stroke: #475569; fill: none; }\n"
          ".grid { stroke: #e2e8f0; fill: none; }\n"
          ".line { stroke-width: 2.5; fill: none; stroke-linejoin: round; }\n"
          ".goal { stroke-width: 1.5; fill: none; stroke-dasharray: 5 4; }\n"
          "</style>\n",
          file);
    fprintf(file, "<rect width=\"%.0f\" height=\"%.0f\" rx=\"6\" fill=\"#ffffff\"/>\n",
            picture_width, picture_height);
    fputs("<text class=\"title\" x=\"24\" y=\"26\">Handwritten digits: four workers, one store"
          "</text>\n",
          file);
}

bool plot_svg(const struct curve *curve, const char *path) {
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        return false;
    }
    struct panel panels[PANELS];
    struct axis epochs = axis_over(0.0, curve->count, 6);
    epochs.step = fmax(epochs.step, 1.0);
    make_panels(curve, panels);
    svg_head(file);
    for (int i = 0; i < PANELS; i++) {
        svg_value_axis(file, &panels[i]);
        svg_epoch_axis(file, &panels[i], &epochs);
        svg_legend(file, panels[i].left, "line", panels[i].colour, panels[i].title);
    }
    const double goal = down(&panels[ACCURACY], curve->required_accuracy);
    char text[32];
    snprintf(text, sizeof text, "required: %.2f", curve->required_accuracy);
    fprintf(file, "<path class=\"goal\" stroke=\"#64748b\" d=\"M%.1f %.1fh%.1f\"/>\n",
            panels[ACCURACY].left, goal, area_width);
    svg_legend(file, panels[ACCURACY].left + 180.0, "goal", "#64748b", text);
    for (int i = 0; i < PANELS; i++) {
        svg_line(file, &panels[i], &epochs, curve);
    }
    fputs("</svg>\n", file);
    const bool written = ferror(file) == 0;
    return fclose(file) == 0 && written;
}

enum { TEXT_COLUMNS = 30, TEXT_ROWS = 11 };

/* Puts a star for each epoch into a grid whose row 0 is the top. */
static void text_grid(const struct panel *panel, const struct curve *curve,
                      char grid[TEXT_ROWS][TEXT_COLUMNS + 1]) {
    const int last = curve->count > 1 ? curve->count - 1 : 1;
    for (int row = 0; row < TEXT_ROWS; row++) {
        memset(grid[row], ' ', TEXT_COLUMNS);
        grid[row][TEXT_COLUMNS] = '\0';
    }
    for (int i = 0; i < curve->count; i++) {
        const double value = panel->value(&curve->epochs[i]);
        const double depth = (1.0 - fraction(&panel->axis, value)) * (TEXT_ROWS - 1);
        if (depth >= 0.0 && depth <= TEXT_ROWS - 1) { /* false for a loss that is not a number */
            grid[lround(depth)][i * (TEXT_COLUMNS - 1) / last] = '*';
        }
    }
}

/* Only the lowest, the middle and the highest row carry their value. */
static void text_row(FILE *file, const struct axis *axis, int row, const char *stars) {
    if (row % (TEXT_ROWS / 2) == 0) {
        const double value = axis->high - (axis->high - axis->low) * row / (TEXT_ROWS - 1);
        fprintf(file, "%6.2f |%s", value, stars);
    } else {
        fprintf(file, "       |%s", stars);
    }
}

void plot_text(const struct curve *curve, FILE *file) {
    static const char line[] = "------------------------------";
    char grids[PANELS][TEXT_ROWS][TEXT_COLUMNS + 1];
    struct panel panels[PANELS];
    make_panels(curve, panels);
    for (int i = 0; i < PANELS; i++) {
        text_grid(&panels[i], curve, grids[i]);
        fprintf(file, "        %-*s", TEXT_COLUMNS, panels[i].title);
    }
    fputc('\n', file);
    for (int row = 0; row < TEXT_ROWS; row++) {
        for (int i = 0; i < PANELS; i++) {
            text_row(file, &panels[i].axis, row, grids[i][row]);
        }
        fputc('\n', file);
    }
    for (int i = 0; i < PANELS; i++) {
        fprintf(file, "       +%.*s", TEXT_COLUMNS, line);
    }
    fputc('\n', file);
    for (int i = 0; i < PANELS; i++) {
        fprintf(file, "        %-*d%*d", TEXT_COLUMNS - 12, 1, 12, curve->count);
    }
    fputc('\n', file);
}
