"""Parts: compiled for a layout when asked for, called by address, as plain functions with the JIT off."""

from typing import Any, NamedTuple

import numpy as np

from firsttouch._jit import JIT, state_kernel
from firsttouch._packed import packed
from firsttouch.mm.parts import call_part, part


class Places(NamedTuple):
    add: Any


class Small(NamedTuple):
    counts: np.ndarray
    parts: Places


class Large(NamedTuple):
    before: np.ndarray
    counts: np.ndarray
    parts: Places


@state_kernel
def double(value):
    return 2 * value


@part
def add(w, a, b, c, d):
    w.counts[a] += b
    return double(w.counts[a]) + c - d


@state_kernel
def step(w, a, b):
    if w.parts.add == 0:
        return -1
    return call_part(w.parts.add, w, a, b, 1000, 1)


def with_part(state):
    return state._replace(parts=Places(add.place(packed(state))))


def test_a_part_sees_the_world_and_answers():
    state = with_part(Small(np.array([1, 2, 3], np.int64), Places(0)))
    assert step(packed(state), 1, 40) == 2 * 42 + 999
    assert state.counts.tolist() == [1, 42, 3]


def test_a_part_works_on_each_layout_and_is_compiled_once_for_it():
    small = with_part(Small(np.array([1], np.int64), Places(0)))
    large = with_part(Large(np.zeros(5, np.int8), np.array([7, 8], np.int32), Places(0)))
    assert step(packed(small), 0, 1) == 2 * 2 + 999
    assert step(packed(large), 1, 2) == 2 * 10 + 999
    assert add.place(packed(small)) == small.parts.add
    assert (small.parts.add == large.parts.add) is not JIT


def test_no_part_is_no_call():
    assert step(packed(Small(np.zeros(1, np.int64), Places(0))), 0, 1) == -1
