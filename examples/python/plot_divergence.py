"""Draws two runs as SVG: their losses, and below them in how many keys they differ.

Usage: plot_divergence.py LOG_A LOSSES_A LOG_B LOSSES_B SVG

A LOG is the folder of an option digest_log, whose lines docs/use/reproducibility.md has; LOSSES has
the loss after each round, one in a line, as digits_bits.py writes it. Prints what the picture
shows.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

WIDTH, HEIGHT = 800, 436
LEFT, RIGHT = 64, 776
LOSS_TOP, LOSS_BOTTOM = 72, 262
KEYS_TOP, KEYS_BOTTOM = 316, 386
COLOURS = {"A": "#fdba74", "B": "#1d4ed8", "keys": "#b91c1c", "flip": "#64748b"}

HEAD = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" \
height="{HEIGHT}" role="img">
<title>Losses of two runs that differ in one bit, and the number of keys that differ</title>
<style>
text {{ font: 12px 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif; }}
text:not([fill]) {{ fill: #475569; }}
text.title {{ font-size: 15px; font-weight: bold; fill: #0f172a; }}
.axis {{ stroke: #475569; fill: none; }}
.grid {{ stroke: #e2e8f0; fill: none; }}
.wide {{ stroke-width: 7; fill: none; stroke-linejoin: round; }}
.line {{ stroke-width: 2; fill: none; stroke-linejoin: round; }}
.flip {{ stroke-width: 1.5; fill: none; stroke-dasharray: 5 4; }}
</style>
<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#ffffff"/>
<text class="title" x="24" y="26">Handwritten digits: one bit of one gradient flipped</text>
"""


def read_log(folder):
    """What the servers digested of each slice of a key, by round."""
    rounds = defaultdict(dict)
    for path in sorted(Path(folder).glob("*.jsonl")):
        with open(path, encoding="utf-8") as file:
            for line in map(json.loads, file):
                if "round" in line:
                    digests = line["value"], line.get("state"), line.get("pushes")
                    rounds[line["round"]][line["key"], line["start"]] = digests
    return rounds


def count_differing(a, b):
    """In how many keys the runs differ, for each round from 1."""
    last = max(a | b)
    counts = []
    for number in range(1, last + 1):
        here, there = a.get(number, {}), b.get(number, {})
        slices = here.keys() | there.keys()
        differ = {key for key, start in slices if here.get((key, start)) != there.get((key, start))}
        counts.append(len(differ))
    return counts


def read_losses(path):
    with open(path, encoding="ascii") as file:
        return [float(line) for line in file]


class Panel:
    """An area of the picture with rounds from left to right, and values from its bottom up."""

    def __init__(self, rounds, top, bottom, high):
        self.rounds, self.top, self.bottom, self.high = rounds, top, bottom, high
        self.parts = []

    def x(self, round):
        return LEFT + (RIGHT - LEFT) * round / self.rounds

    def y(self, value):
        return self.bottom - (self.bottom - self.top) * value / self.high

    def axes(self, ticks, form):
        for value in ticks:
            y = self.y(value)
            self.parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{RIGHT}"/>')
            self.text(LEFT - 9, y + 4, format(value, form), "end")
        self.parts.append(f'<path class="axis" d="M{LEFT} {self.top}V{self.bottom}H{RIGHT}"/>')

    def text(self, x, y, text, anchor="start", colour=None):
        fill = f' fill="{colour}"' if colour else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{fill}>{text}</text>'
        )

    def line(self, kind, colour, points):
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline class="{kind}" stroke="{colour}" points="{path}"/>')

    def legend(self, x, kind, colour, text):
        y = self.top - 21
        self.parts.append(f'<path class="{kind}" stroke="{colour}" d="M{x} {y - 4}h24"/>')
        self.text(x + 32, y, text)

    def mark(self, round, colour):
        path = f"M{self.x(round):.1f} {self.top}V{self.bottom}"
        self.parts.append(f'<path class="flip" stroke="{colour}" d="{path}"/>')


def nice_ticks(high):
    """Multiples of 0.5 or 1 up to the next one above the largest value."""
    step = 0.5 if high <= 3 else 1.0
    count = int(high / step) + 1
    return [step * i for i in range(count + 1)]


def draw(losses, counts, keys):
    rounds, flip = len(counts), counts.index(next(filter(None, counts), counts[-1])) + 1
    ticks = nice_ticks(max(map(max, losses)))
    upper = Panel(rounds, LOSS_TOP, LOSS_BOTTOM, ticks[-1])
    upper.axes(ticks, ".1f")
    upper.legend(LEFT, "wide", COLOURS["A"], "loss, undisturbed")
    upper.legend(LEFT + 180, "line", COLOURS["B"], "loss, with the flipped bit")
    for kind, name, run in [("wide", "A", losses[0]), ("line", "B", losses[1])]:
        upper.line(kind, COLOURS[name], enumerate(run, 1))
    lower = Panel(rounds, KEYS_TOP, KEYS_BOTTOM, keys)
    lower.axes(range(0, keys + 1, max(1, keys // 4)), "d")
    lower.legend(LEFT, "line", COLOURS["keys"], f"keys whose digests differ, of {keys}")
    steps = [
        (number - 1 + side, count) for number, count in enumerate(counts, 1) for side in (0, 1)
    ]
    lower.line("line", COLOURS["keys"], steps)
    if any(counts):
        far = max(abs(a - b) for a, b in zip(*losses))
        for panel in (upper, lower):
            panel.mark(flip - 1, COLOURS["flip"])
        upper.text(upper.x(flip - 1) + 8, LOSS_TOP + 14, f"one bit flips in round {flip}")
        upper.text(RIGHT, LOSS_TOP + 14, f"the losses differ by at most {far:.8f}", "end")
    for number in range(0, rounds + 1, 20 if rounds > 50 else 5):
        x = lower.x(number)
        lower.parts.append(f'<path class="axis" d="M{x:.1f} {KEYS_BOTTOM}v5"/>')
        lower.text(x, KEYS_BOTTOM + 19, str(number), "middle")
    lower.text((LEFT + RIGHT) / 2, KEYS_BOTTOM + 38, "round", "middle")
    return HEAD + "\n".join([*upper.parts, *lower.parts]) + "\n</svg>\n"


def main():
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    log_a, losses_a, log_b, losses_b, picture = sys.argv[1:]
    a, b = read_log(log_a), read_log(log_b)
    losses = read_losses(losses_a), read_losses(losses_b)
    counts = count_differing(a, b)
    keys = len({key for slices in a.values() for key, _ in slices})
    with open(picture, "w", encoding="ascii") as file:
        file.write(draw(losses, counts, keys))
    far = max(abs(here - there) for here, there in zip(*losses))
    rounds = sum(map(bool, counts))
    print(
        f"The losses differ by at most {far:.8f}, the digests in {rounds} of {len(counts)} rounds."
    )


if __name__ == "__main__":
    main()
