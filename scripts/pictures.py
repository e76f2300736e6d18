#!/usr/bin/env python3
"""Draws the tables of docs/use/frameworks with times beside the frameworks' own, as SVG beside the pages.

    pictures.py            writes the pictures
    pictures.py --check    fails with a sentence where a picture is not that of its tables

Each section with such tables has a picture: that of the first one is named like the page. A cell like
`96.9 (0.95)` is a time of ours, and the last plain number before it the framework's. A bar is the
framework's divided by ours, whatever the brackets divide; a time without brackets has none.
"""

import argparse
import html
import math
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGES = Path(__file__).resolve().parents[1] / "docs" / "use" / "frameworks"
NUMBER = r"[\d,]*\.?\d+"
WIDTH, LEFT, RIGHT, TOP = 800, 24, 776, 118
# Vertical distance of bars, and their height; room for the figure at a bar's end.
PITCH, BAR, FIGURE = 17, 12, 40
# Wide enough for letters of any sans-serif font at 12 pixels; a longer name of a row is wrapped.
LETTER, NAME = 6.8, 28
WHAT = "times of the tables on a logarithmic axis, the framework's own divided by ours"
COLOURS = {"faster here": "#1d4ed8", "slower here": "#c2410c"}
STYLE = """<style>
text { font: 12px 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif; fill: #475569; }
text.title { font-size: 16px; font-weight: bold; fill: #0f172a; }
text.note { font-weight: bold; fill: #0f172a; }
text.halo { fill: #ffffff; stroke: #ffffff; stroke-width: 3px; }
.grid { stroke: #e2e8f0; fill: none; }
.goal { stroke: #0f172a; stroke-width: 1.5; stroke-dasharray: 5 4; }
</style>"""


class Bar(NamedTuple):
    """A time of ours beside the framework's, each by the head of its column."""

    theirs: str
    ours: str
    ratio: float


class Table(NamedTuple):
    title: str
    rows: list[tuple[str, list[Bar]]]

    def label(self, bar: Bar) -> str:
        """What a bar compares, as far as the title does not say it."""
        is_said = self.title.endswith(f", beside {bar.theirs}")
        return bar.ours if is_said else f"{bar.ours} beside {bar.theirs}"


def number(cell: str) -> float:
    return float(cell.replace(",", ""))


def bars(head: list[str], row: list[str]) -> list[Bar]:
    theirs, found = 0, []
    for at, cell in enumerate(row[1:], 1):
        ours = re.fullmatch(rf"({NUMBER}) \({NUMBER}\)", cell)
        if re.fullmatch(NUMBER, cell):
            theirs = at
        elif ours and theirs:
            found.append(Bar(head[theirs], head[at], number(row[theirs]) / number(ours[1])))
    return found


def tables(section: str) -> Iterator[Table]:
    for block in re.findall(r"(?:^\|.*\n)+", section, re.M):
        lines = block.replace("`", "").splitlines()
        head, _, *rows = ([cell.strip() for cell in line[1:].split("|")] for line in lines)
        drawn = [(row[0], found) for row in rows if (found := bars(head, row))]
        others = {bar.theirs for _, found in drawn for bar in found}
        if drawn:
            yield Table(f"{head[0]}, beside {others.pop()}" if len(others) == 1 else head[0], drawn)


def figure(ratio: float) -> str:
    digits = 2 if ratio < 1.995 else 1 if ratio < 9.95 else 0
    return f"{ratio:.{digits}f}"


def text(x: float, y: float, words: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{html.escape(words, quote=False)}</text>'


def block(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>'


def draw(title: str, drawn: list[Table]) -> str:
    rows = [(table, name, found) for table in drawn for name, found in table.rows]
    powers = [math.log2(bar.ratio) for _, _, found in rows for bar in found]
    first, last = min(-1, math.floor(min(powers))), max(1, math.ceil(max(powers)))
    names = max(len(line) for _, name, _ in rows for line in textwrap.wrap(name, NAME))
    labels = max(len(table.label(bar)) for table, _, found in rows for bar in found)
    left = LEFT + LETTER * (names + labels) + 26
    step = (RIGHT - left - 2 * FIGURE) / (last - first)

    def x(power: float) -> float:
        return left + FIGURE + step * (power - first)

    blocks, words, y = [], [], float(TOP)
    for table in drawn:
        words += [text(LEFT, y + 22, table.title, f'class="{kind}"') for kind in ("note halo", "note")]
        y += 34
        for name, found in table.rows:
            lines = textwrap.wrap(name, NAME)
            height = PITCH * max(len(lines), len(found))
            for at, line in enumerate(lines):
                words.append(text(LEFT, y + (height - PITCH * len(lines)) / 2 + PITCH * at + 12, line))
            for at, bar in enumerate(found):
                middle = y + (height - PITCH * len(found)) / 2 + PITCH * at + PITCH / 2
                is_faster, end = bar.ratio >= 1, x(math.log2(bar.ratio))
                colour = COLOURS["faster here" if is_faster else "slower here"]
                blocks.append(block(min(x(0), end), middle - BAR / 2, abs(end - x(0)), colour))
                words.append(text(left - 8, middle + 4, table.label(bar), 'text-anchor="end"'))
                place = end + 5 if is_faster else end - 5
                anchor = f'text-anchor="{"start" if is_faster else "end"}"'
                # A halo is a text of its own: some renderers ignore `paint-order`.
                for kind in ("halo", "figure"):
                    words.append(text(place, middle + 4, figure(bar.ratio), f'{anchor} class="{kind}"'))
            y += height + 8
        y += 4
    height = y + 38
    grid = [f'<path class="grid" d="M{x(power):.1f} {TOP}V{y:.1f}"/>' for power in range(first, last + 1)]
    for power in range(first, last + 1):
        for place in (TOP - 8, y + 18):
            grid.append(text(x(power), place, f"{2.0**power:g}", 'text-anchor="middle"'))
    legend, place = [], LEFT
    for name, colour in COLOURS.items():
        legend += [block(place, 70, 12, colour), text(place + 18, 80, name)]
        place += 110
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img">',
        f"<title>{html.escape(title, quote=False)}</title>",
        STYLE,
        f'<rect width="{WIDTH}" height="{height:.0f}" rx="6" fill="#ffffff"/>',
        text(LEFT, 30, title, 'class="title"'),
        text(LEFT, 52, f"{WHAT}: to the right of 1 is faster here"),
        *legend,
        *grid,
        *blocks,
        f'<path class="goal" d="M{x(0):.1f} {TOP}V{y:.1f}"/>',
        *words,
        "</svg>\n",
    ]
    return "\n".join(parts)


class Picture(NamedTuple):
    path: Path
    page: Path
    is_shown: bool
    svg: str


def pictures() -> Iterator[Picture]:
    for page in sorted(PAGES.glob("*.md")):
        head, *sections = re.split(r"^## ", page.read_text(), flags=re.M)
        found = [(section, drawn) for section in sections if (drawn := list(tables(section)))]
        for at, (section, drawn) in enumerate(found):
            heading = section.split("\n", 1)[0]
            end = "-" + re.sub(r"\W+", "-", heading.lower()) if at else ""
            path = page.with_name(f"{page.stem}{end}.svg")
            title = f"{head.splitlines()[0].lstrip('# ')}: {heading}"
            yield Picture(path, page, f"]({path.name})" in section, draw(title, drawn))


def check() -> None:
    found = list(pictures())
    for it in found:
        if not it.is_shown:
            sys.exit(f"{it.page.name} does not show {it.path.name} in the section of its tables")
        if not it.path.exists() or it.path.read_text() != it.svg:
            sys.exit(f"{it.path.name} is not what the tables of {it.page.name} give: make pictures")
    for path in sorted(set(PAGES.glob("*.svg")) - {it.path for it in found}):
        sys.exit(f"{path.name} is the picture of no table in docs/use/frameworks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    if parser.parse_args().check:
        check()
        return
    for it in pictures():
        it.path.write_text(it.svg)


if __name__ == "__main__":
    main()
