"""A state as one pointer: kernels read all that the tuple holds, and what they write is seen in it."""

import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

from firsttouch._jit import JIT, state_kernel
from firsttouch._packed import packed


class Inner(NamedTuple):
    counts: np.ndarray
    flag: bool
    limit: int


class Middle(NamedTuple):
    inner: Inner
    table: np.ndarray


class State(NamedTuple):
    before: int
    middle: Middle
    bytes_: np.ndarray
    on: bool
    off: bool
    cube: np.ndarray
    after: int


def make():
    return State(
        before=-7,
        middle=Middle(Inner(np.arange(5, dtype=np.int64), True, 1 << 40), np.arange(12, dtype=np.int32).reshape(3, 4)),
        bytes_=np.array([200, 7], np.uint8),
        on=True,
        off=False,
        cube=np.arange(24, dtype=np.int64).reshape(2, 3, 4),
        after=9,
    )


@state_kernel
def read(s, out):
    inner = s.middle.inner
    out[0] = s.before
    out[1] = s.after
    out[2] = inner.limit
    out[3] = inner.counts[4]
    out[4] = s.middle.table[2, 1]
    out[5] = s.cube[1, 2, 3]
    out[6] = s.bytes_[0]
    out[7] = len(inner.counts)
    out[8] = s.middle.table.shape[0] * 100 + s.middle.table.shape[1]
    if s.on:
        out[9] += 1
    if s.off:
        out[9] += 10
    if inner.flag:
        out[9] += 100


def test_every_field_is_read_through_all_levels():
    out = np.zeros(10, np.int64)
    read(packed(make()), out)
    assert out.tolist() == [-7, 9, 1 << 40, 4, 9, 23, 200, 5, 304, 101]


@state_kernel
def add(counts_of, by):
    counts_of.counts[1] += by


@state_kernel
def write(s):
    s.middle.table[1, 3] = -5
    s.cube[0, 1, 2] = 77
    s.bytes_[1] = 255
    add(s.middle.inner, 1000)  # a part is passed on like the whole


def test_what_a_kernel_writes_is_seen_in_the_tuple():
    state = make()
    write(packed(state))
    assert state.middle.table[1, 3] == -5
    assert state.cube[0, 1, 2] == 77
    assert state.bytes_[1] == 255
    assert state.middle.inner.counts.tolist() == [0, 1001, 2, 3, 4]
    assert state.middle.table.sum() == sum(range(12)) - 7 - 5  # nothing else changed


def test_the_arrays_stay_where_they_are():
    state = make()
    pointer = packed(state)
    state.middle.inner.counts[1] = 500  # after packing
    write(pointer)
    assert state.middle.inner.counts[1] == 1500


@pytest.mark.skipif(not JIT, reason="without the JIT a state is passed as it is")
@pytest.mark.parametrize("array", [np.arange(10, dtype=np.int64)[::2], np.zeros((3, 4), np.int64).T])
def test_an_array_with_gaps_is_refused(array):
    with pytest.raises(ValueError, match="counts of Inner is not C-contiguous"):
        packed(Inner(array, False, 0))


def test_an_empty_array_and_two_layouts_of_one_class():
    @state_kernel
    def length(s):
        return len(s.counts)

    assert length(packed(Inner(np.zeros(0, np.int64), False, 0))) == 0
    assert length(packed(Inner(np.zeros(3, np.int32), False, 0))) == 3
    assert length(packed(Inner(np.zeros((4, 2), np.uint8), False, 0))) == 4


OUTSIDE = """
from typing import NamedTuple
import numpy as np
from firsttouch._jit import state_kernel
from firsttouch._packed import packed

class State(NamedTuple):
    flat: np.ndarray
    table: np.ndarray

@state_kernel
def read(s, i, j):
    return s.flat[i] + s.table[i, j]

@state_kernel
def write(s, i, j):
    s.table[i, j] = s.flat[i]

state = packed(State(np.arange(3), np.arange(6).reshape(3, 2)))
assert read(state, 2, 1) == 2 + 5
write(state, 0, 1)
for i, j in ((-1, 0), (3, 0), (0, 2), (0, -1)):
    for kernel in (read, write):
        try:
            kernel(state, i, j)
        except IndexError:
            continue
        raise SystemExit(f"{i}, {j} is inside")
"""


@pytest.mark.skipif(not JIT, reason="plain Python lets -1 be the last")
def test_with_bounds_checks_an_index_is_neither_negative_nor_past_the_end(tmp_path):
    program = tmp_path / "outside.py"
    program.write_text(OUTSIDE)
    environment = {**os.environ, "FIRSTTOUCH_BOUNDSCHECK": "1"}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
