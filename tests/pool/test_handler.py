"""The scrubber's gates, and locks that nobody waits for long; by hand."""

import ctypes

import numpy as np
import pytest
from harness import PAGE, Bare

from firsttouch._jit import kernel
from firsttouch.pool import handler, scrubber
from firsttouch.pool import state as h
from firsttouch.pool.state import NR_DEFERRED, NR_WAKEUPS, PAGE_SHIFT

MIB = 1 << 20
HOUR_S = 3600


@pytest.fixture(scope="module")
def bare():
    pool = Bare(16 * MIB)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    "window, offset_s, open_hours",
    [
        ((0, 0), 0, range(24)),  # all day
        ((120, 240), 0, [2, 3]),
        ((120, 240), HOUR_S, [1, 2]),  # an hour east
        ((120, 240), -3 * HOUR_S, [5, 6]),
        ((1380, 60), 0, [23, 0]),  # over midnight
    ],
)
def test_the_window_of_the_day(bare, window, offset_s, open_hours):
    word = bare.arena.word
    word[h.WINDOW_START], word[h.WINDOW_END], word[h.UTC_OFFSET_S] = *window, offset_s
    days_s = 20_000 * 24 * HOUR_S
    found = [hour for hour in range(24) if scrubber.in_window(bare.packed, days_s + hour * HOUR_S + 59)]
    assert found == sorted(open_hours)
    word[h.WINDOW_START] = word[h.WINDOW_END] = 0


@pytest.mark.parametrize(
    "text, percent",
    [
        (b"some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", 0),
        (b"some avg10=12.34 avg60=99.00 avg300=0.00 total=0\n", 12),
        (b"some avg10=100.00 avg60=0", 100),
        (b"some aavg10=7.00", 7),
        (b"some avg60=5.00", 0),
        (b"", 0),
    ],
)
def test_pressure_is_read_from_the_kernels_line(bare, text, percent):
    at = h.SCRATCH + 8
    room = bare.arena.word[at : at + 8].view(np.uint8)
    room[:] = 0
    room[: len(text[:64])] = np.frombuffer(text[:64], np.uint8)
    assert scrubber.parse_pressure(bare.packed, at, len(text[:64])) == percent


@kernel
def locked(a, zone):
    """Take a lock and keep it."""
    return handler.try_lock(a, zone)


@kernel
def unlocked(a, zone):
    """Let go of a lock."""
    handler.unlock(a, zone)


def test_a_lock_that_is_never_let_go_costs_memory_but_no_hang(bare):
    kept = bare.calloc(4, PAGE)
    assert bare.owns(kept)
    assert locked(bare.packed, 0) and not locked(bare.packed, 0)
    try:
        elsewhere = bare.malloc(2 * PAGE)
        assert elsewhere and not bare.owns(elsewhere)
        bare.free(elsewhere, 2 * PAGE)
        ctypes.memset(kept, 7, 4 * PAGE)
        assert bare.realloc(kept, 2 * PAGE) == kept  # it stays as long as it is
        assert bare.arena.nr_pages[(kept - bare.base) >> PAGE_SHIFT] == 4
        bare.free(kept)
        assert bare.scrub() == scrubber.BUSY and bare.populate() == scrubber.BUSY
    finally:
        unlocked(bare.packed, 0)
    assert bare.pool.stats().live_bytes == 4 * PAGE
    again = bare.malloc(PAGE)  # whoever has the lock next frees it
    assert bare.arena.counts[0, NR_DEFERRED] == 1
    bare.free(again)
    assert bare.pool.stats().live_bytes == 0 and bare.wrong() == []


def test_frees_wake_the_scrubber_once_and_only_from_the_start_order_up(bare):
    bare.arena.word[h.START_ORDER] = 3
    small = [bare.malloc(PAGE) for _ in range(2)]
    bare.pool.trim()
    bare.arena.awake[:] = 0
    before = int(bare.arena.counts[0, NR_WAKEUPS])
    large = bare.malloc(8 * PAGE)
    bare.free(large)
    large = bare.malloc(8 * PAGE)
    bare.free(large)
    assert bare.arena.counts[0, NR_WAKEUPS] == before + 1
    for address in small:
        bare.free(address)
    while bare.scrub() == scrubber.DONE:
        pass
    assert bare.pool.stats().free_unzeroed_bytes == 0
    assert not scrubber.settle(bare.packed, False)
    assert not bare.arena.awake[0]
