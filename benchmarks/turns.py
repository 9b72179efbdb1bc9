"""The order in which configurations take turns in a benchmark."""

import random
from collections.abc import Iterator, Sequence


def turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """(round, name): each name once a round, in an order drawn anew (and the same in every run of the benchmark).

    What a process leaves behind - free memory in small or large blocks, memory that the host takes back - is its
    successor's to start with. In a fixed order, or one that rotates, a configuration always comes after the same other.
    """
    draw = random.Random(1)
    for i in range(rounds):
        for name in draw.sample(names, len(names)):
            yield i, name
