"""The clock of perf events, read from user space."""

import ctypes
import errno
import os
import time

import pytest

from firsttouch.errors import NotHere
from firsttouch.record import perf_event as pe
from firsttouch.record import recorder
from firsttouch.record.clock import Clock
from firsttouch.record.ring import CannotPin


@pytest.fixture
def clock(recordable):
    one = Clock()
    yield one
    one.close()


def test_it_goes_on_as_monotonic_time_does(clock):
    for _ in range(1000):  # many times around the ring
        before_ns = time.monotonic_ns()
        now_ns = clock.now_ns()
        after_ns = time.monotonic_ns()
    # the two clocks may drift apart by 500 parts in a million, for the moment that this took
    assert before_ns - 1_000_000 <= now_ns + clock.monotonic_offset_ns <= after_ns + 1_000_000
    assert clock.now_ns() > now_ns


def test_the_thread_keeps_its_name(clock):
    name = ctypes.create_string_buffer(16)
    libc = ctypes.CDLL(None)
    libc.prctl(15, b"a thread of ours", 0, 0, 0)
    clock.now_ns()
    libc.prctl(16, name, 0, 0, 0)
    assert name.value == b"a thread of our"


@pytest.mark.parametrize(
    ("error", "says"), [(CannotPin(), "perf_event_mlock_kb"), (OSError(errno.ENOSYS, "no"), "the clock of perf events")]
)
def test_a_clock_that_may_not_be_read_is_a_reason_of_one_line(monkeypatch, error, says):
    def refuse():
        raise error

    monkeypatch.setattr(recorder, "Clock", refuse)
    with pytest.raises(NotHere, match=says) as caught:
        recorder.Events([1], "basic", stacks=False, on_exec=True)
    assert "\n" not in caught.value.message


def test_a_ring_that_may_not_be_mapped_closes_the_event(recordable, monkeypatch):
    fds = []
    opened = pe.open_event

    def open_event(*args):
        fds.append(opened(*args))
        return fds[-1]

    def mapped(*_):
        raise CannotPin

    monkeypatch.setattr(pe, "open_event", open_event)
    monkeypatch.setattr("firsttouch.record.clock.Ring", mapped)
    with pytest.raises(CannotPin):
        Clock()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fds[0])
