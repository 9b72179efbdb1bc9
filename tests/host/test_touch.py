"""Kernels that touch raw memory: what they leave there, and how many faults they take."""

import ctypes
import resource

import numpy as np
import pytest

from firsttouch import _jit

if not _jit.JIT:
    pytest.skip("memory cannot be touched by address with the JIT off", allow_module_level=True)

from firsttouch.host import touch
from firsttouch.host.touch import Region

PAGE = resource.getpagesize()


def contents(address: int, nr_bytes: int) -> bytes:
    return ctypes.string_at(address, nr_bytes)


@pytest.mark.parametrize("method", touch.METHODS)
@pytest.mark.parametrize("nr_pages", [1, 3, 16])
def test_zeroing_leaves_zeros_there_and_touches_nothing_else(method: str, nr_pages: int) -> None:
    with Region((nr_pages + 2) * PAGE) as region:
        ctypes.memset(region.address, 0xA5, region.nr_bytes)
        touch.METHODS[method](region.address + PAGE, nr_pages * PAGE, PAGE)
        assert contents(region.address, region.nr_bytes) == (b"\xa5" * PAGE + bytes(nr_pages * PAGE) + b"\xa5" * PAGE)


@pytest.mark.parametrize("method", touch.METHODS)
@pytest.mark.parametrize("warm", [False, True])
def test_timed_zeroing_zeroes_each_block_it_was_given(method: str, warm: bool) -> None:
    with Region(8 * PAGE) as region:
        ctypes.memset(region.address, 0xA5, region.nr_bytes)
        blocks = region.address + PAGE * np.array([5, 0, 3, 6])
        chunk_ns = np.full(2, -1)
        touch.TIME_ZERO[method](blocks, PAGE, PAGE, 2, warm, chunk_ns)
        zeroed = {page for page in range(8) if not any(contents(region.address + page * PAGE, PAGE))}
        assert zeroed == ({0, 5} if warm else {0, 3, 5, 6})  # warm stays on the first two
        assert (chunk_ns >= 0).all()


def faults_of(region: Region, write: bool) -> int:
    chunk_ns = np.zeros(4, np.int64)
    nr_pages = region.nr_bytes // PAGE
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    touch.time_touch(region.address, nr_pages // 4, PAGE, write, chunk_ns)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_each_page_faults_once_to_read_and_once_more_to_write() -> None:
    with Region(1 << 20) as warm_up:
        faults_of(warm_up, write=True)  # so that the kernels and arrays themselves fault no more
    with Region(4 << 20) as region:
        assert region.advise(touch.MADV_NOHUGEPAGE)
        nr_pages = region.nr_bytes // PAGE
        assert nr_pages <= faults_of(region, write=False) <= nr_pages + 20
        assert nr_pages <= faults_of(region, write=True) <= nr_pages + 20
        assert faults_of(region, write=True) <= 20


def test_touching_at_addresses_writes_there_only() -> None:
    with Region(4 * PAGE) as region:
        addresses = region.address + PAGE * np.array([2, 0])
        touch.time_touch_at(addresses, 1, True, np.zeros(2, np.int64))
        assert [contents(region.address + page * PAGE, 1) for page in range(4)] == [b"\1", b"\0", b"\1", b"\0"]


def test_touching_lines_writes_each_line() -> None:
    with Region(2 * PAGE) as region:
        touch.time_lines(np.array([region.address + PAGE]), 1, PAGE, 64, np.zeros(1, np.int64))
        words = np.frombuffer(contents(region.address, 2 * PAGE), np.int64).reshape(2, PAGE // 64, 8)
        assert (words[0] == 0).all()
        assert (words[1, :, 0] == 1).all() and (words[1, :, 1:] == 0).all()


def test_reading_sums_what_is_there() -> None:
    with Region(4 * PAGE) as region:
        ctypes.memset(region.address, 1, region.nr_bytes)
        word = int.from_bytes(b"\1" * 8, "little")
        assert touch.time_touch(region.address, 2, PAGE, False, np.zeros(2, np.int64)) == 4 * word
        assert touch.read_lines(region.address, 8 * 64) == 8 * word


def test_a_region_starts_on_a_superpage_and_shrinks_from_its_start() -> None:
    with Region(4 << 20) as region:
        first = region.address
        assert first % (2 << 20) == 0
        region.unmap(2 << 20)
        assert (region.address, region.nr_bytes) == (first + (2 << 20), 2 << 20)
        ctypes.memset(region.address, 1, region.nr_bytes)  # the rest is still there
    assert region.nr_bytes == 0


def test_the_clock_goes_forward() -> None:
    chunk_ns = np.full(100, -1)
    touch.time_clock(chunk_ns)
    assert (chunk_ns >= 0).all()
    touch.time_syscalls(10, chunk_ns)
    assert (chunk_ns > 0).all()


def test_two_parties_meet() -> None:
    words = np.zeros(1, np.int64)
    words[0] = 1  # the other one is there already
    assert touch.meet(words.ctypes.data, 2)
    assert words[0] == 2
