"""Trains word vectors on a book: each step reads and changes a few rows of two large tables.

Usage: embedding.py DATA [--epochs N] [--steps N]

DATA is opticks.txt.bz2. The model is skip-gram with negative sampling (Mikolov et al., 2013): a
word's vector in one table should score the words around it, by their vectors in the other table,
above random noise words. The store keeps both tables and changes them by AdaGrad; a step pulls the
rows of its words and pushes their gradients.

The first steps are made twice: with whole tables, then with rows. Both ways must end with the same
bits. The bytes are those of the vectors; row ids add 8 for each row.

Accuracy is how often a word of held-out text scores a true neighbour above a random word of that
text. Exits with status 1 if the bits differ, or if the accuracy is below 0.59 in the end.
"""

import argparse
import bz2
import collections
import itertools
import os
import re
import sys
import time

# Before numpy is imported: its matrix products are too small here to gain from threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import kvstore
import numpy as np

DIMENSIONS = 256
STRETCH = 64  # words of a step, one after the other in the text
REACH = 5  # a word's neighbours are up to so many words away
NOISE = 64  # noise words of a step
NOISE_WEIGHT = 5  # what they count together, for each neighbour
FREQUENT = 1e-3  # words above this frequency are thinned out
LEARNING_RATE = 0.1
SEED = 1704
TABLES = ["words", "neighbours"]
COLOURS = ["red", "orange", "yellow", "green", "blue", "indigo", "violet"]
SHOWN = [*COLOURS, "gold", "oil", "heat", "eye", "inches", "first"]


class Book:
    """A text as numbers of words, the most frequent word being 0. A tenth of it is held out."""

    def __init__(self, path):
        with bz2.open(path, "rt", encoding="utf-8") as file:
            text = re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)?", file.read().lower())
        counts = collections.Counter(text).most_common()
        self.words = [word for word, _ in counts]
        self.counts = np.array([count for _, count in counts])
        self.number = {word: number for number, word in enumerate(self.words)}
        self.share_kept = np.minimum(1, np.sqrt(FREQUENT * len(text) / self.counts))
        self.noise = np.cumsum(self.counts**0.75)
        numbers = np.array([self.number[word] for word in text])
        held_out = np.arange(len(text)) // 1000 % 10 == 0
        self.train, self.test = numbers[~held_out], numbers[held_out]

    def thinned(self, text, random):
        """Leaves out most of the frequent words, which say little about those around them."""
        return text[random.random(len(text)) < self.share_kept[text]]

    def epoch(self, random):
        """The steps of one pass over the text: words, and the words to score against them."""
        text = self.thinned(self.train, random)
        for first in random.permutation(range(REACH, len(text) - STRETCH - REACH, STRETCH)):
            around = text[first - REACH : first + STRETCH + REACH]
            noise = np.searchsorted(self.noise, random.random(NOISE) * self.noise[-1])
            yield text[first : first + STRETCH], np.concatenate([around, noise])


def pairs_of_a_step():
    """Which pairs of a step are neighbours, and what each pair counts."""
    distance = np.abs(np.arange(STRETCH)[:, None] + REACH - np.arange(STRETCH + 2 * REACH))
    near = (0 < distance) & (distance <= REACH)
    noise = np.full((STRETCH, NOISE), NOISE_WEIGHT * 2 * REACH / NOISE)
    neighbours = np.hstack([near, np.zeros_like(noise)])
    weights = np.hstack([near, noise])
    return neighbours.astype(np.float32), weights.astype(np.float32)


IS_NEIGHBOUR, WEIGHT = pairs_of_a_step()


def gradients(words, others):
    """The mean loss of a step, and the gradients of its sum, for the rows of both tables."""
    scores = words @ others.T
    loss = (WEIGHT * (np.logaddexp(0, scores) - IS_NEIGHBOUR * scores)).sum() / WEIGHT.sum()
    delta = WEIGHT * (0.5 + 0.5 * np.tanh(0.5 * scores) - IS_NEIGHBOUR)
    return float(loss), [delta @ others, delta.T @ words]


class Training:
    """Word vectors in a store. How they get there and back is what subclasses differ in."""

    def __init__(self, count):
        random = np.random.default_rng(SEED)
        first = random.uniform(-0.5, 0.5, (count, DIMENSIONS)).astype(np.float32) / DIMENSIONS
        self.rows = [np.empty((len(side), DIMENSIONS), np.float32) for side in (WEIGHT, WEIGHT.T)]
        self.kv = kvstore.create("local")
        self.kv.init(TABLES, [first, np.zeros_like(first)])
        self.kv.set_optimizer("adagrad", learning_rate=LEARNING_RATE)

    def step(self, numbers):
        self.pull(numbers)
        loss, pushed = gradients(*self.rows)
        self.push(numbers, pushed)
        return loss

    def tables(self):
        shape = self.kv.key_info(TABLES[0]).shape
        tables = [np.empty(shape, np.float32) for _ in TABLES]
        self.kv.pull(TABLES, out=tables)
        return tables


class RowTraining(Training):
    """Only the rows of a step travel. The store adds up the gradients of equal rows."""

    def pull(self, numbers):
        self.kv.pull_rows(TABLES, numbers, out=self.rows)

    def push(self, numbers, pushed):
        self.kv.push_rows(TABLES, numbers, pushed)


class DenseTraining(Training):
    """Whole tables travel, most rows of the gradients being zero."""

    def __init__(self, count):
        super().__init__(count)
        self.pulled = self.tables()
        self.pushed = [np.zeros_like(table) for table in self.pulled]

    def pull(self, numbers):
        self.kv.pull(TABLES, out=self.pulled)
        for table, some, rows in zip(self.pulled, numbers, self.rows):
            np.take(table, some, axis=0, out=rows)

    def push(self, numbers, pushed):
        for table, some, rows in zip(self.pushed, numbers, pushed):
            np.add.at(table, some, rows)
        self.kv.push(TABLES, self.pushed)
        for table, some in zip(self.pushed, numbers):
            table[some] = 0


def measure(training, steps):
    """Makes the steps; gives the seconds, and the bytes pushed and pulled."""
    before, start = training.kv.stats(), time.perf_counter()
    for numbers in steps:
        training.step(numbers)
    seconds, after = time.perf_counter() - start, training.kv.stats()
    return seconds, *(after[name] - before[name] for name in ("push_bytes", "pull_bytes"))


def compare(book, count):
    """Makes the first steps both ways and prints what they cost; tells whether the bits agree."""
    steps = list(itertools.islice(book.epoch(np.random.default_rng(SEED)), count))
    title = f"the first {len(steps)} steps"
    print(f"\n{title:20}  seconds  MB pushed  MB pulled")
    bits, costs = [], []
    for name, way in [("whole tables", DenseTraining), ("rows", RowTraining)]:
        training = way(len(book.words))
        seconds, pushed, pulled = measure(training, steps)
        print(f"  {name:18} {seconds:8.2f} {pushed / 1e6:10.1f} {pulled / 1e6:10.1f}")
        bits.append([table.tobytes() for table in training.tables()])
        costs.append((seconds, pushed + pulled))
        training.kv.close()
    (slow, many), (fast, few) = costs
    print(f"rows: {many / few:.1f} times fewer bytes, {slow / fast:.1f} times faster")
    same = bits[0] == bits[1]
    print("both ways end with " + ("the same bits" if same else "DIFFERENT BITS"))
    return same


def accuracy(book, words, neighbours):
    """How often a held-out word scores a true neighbour above a random word of the same text."""
    random = np.random.default_rng(SEED)
    text = book.thinned(book.test, random)
    results = []
    for distance in range(1, REACH + 1):
        near, far = text[distance:], random.choice(text, len(text) - distance)
        margin = (words[text[:-distance]] * (neighbours[near] - neighbours[far])).sum(axis=1)
        results.append((np.sign(margin) + 1) / 2)
    return float(np.concatenate(results).mean())


def train(book, epochs):
    """Trains with rows; gives the vectors, and the accuracy on held-out text."""
    training, random = RowTraining(len(book.words)), np.random.default_rng(SEED)
    reached = accuracy(book, *training.tables())
    print(f"\nepoch  0               accuracy {reached:.3f}, as by chance")
    for epoch in range(1, epochs + 1):
        loss = np.mean([training.step(numbers) for numbers in book.epoch(random)])
        reached = accuracy(book, *training.tables())
        print(f"epoch {epoch:2}  loss {loss:.4f}  accuracy {reached:.3f}", flush=True)
    words, _ = training.tables()
    training.kv.close()
    return words, reached


def show_closest(book, vectors):
    """Prints which words stand in the same surroundings, by the angle of their vectors."""
    print("\nclosest words, of those that occur ten times or more")
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    units = units[book.counts >= 10]
    colours = 0
    for word in SHOWN:
        near = np.argsort(units @ units[book.number[word]])[-2:-7:-1]
        closest = [book.words[number] for number in near]
        colours += len(set(closest[:3]) & set(COLOURS)) if word in COLOURS else 0
        print(f"  {word:8} {', '.join(closest)}")
    print(f"colours among the three words closest to each colour: {colours} of {3 * len(COLOURS)}")


def main():
    parser = argparse.ArgumentParser(description="Trains word vectors on a book.")
    parser.add_argument("data", metavar="DATA", help="opticks.txt.bz2")
    parser.add_argument("--epochs", type=int, default=10, metavar="N")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="to make both ways")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error("--steps: there must be one at least")
    book = Book(arguments.data)
    size = len(TABLES) * len(book.words) * DIMENSIONS * 4 / 1e6
    print(f"{len(book.train) + len(book.test)} words, {len(book.words)} different ones")
    print(f"{len(TABLES)} tables of {len(book.words)} x {DIMENSIONS} float32: {size:.1f} MB")
    same = compare(book, arguments.steps)
    vectors, reached = train(book, arguments.epochs)
    show_closest(book, vectors)
    print(f"accuracy on {len(book.test)} held-out words: {reached:.3f}")
    return 0 if same and reached >= 0.59 else 1


if __name__ == "__main__":
    sys.exit(main())
