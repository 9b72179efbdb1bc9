"""A pool that no NumPy uses: its functions called as C calls them, its memory read byte by byte."""

import ctypes
from ctypes import c_int64

import numpy as np

from firsttouch._jit import kernel
from firsttouch._native import clock_ns
from firsttouch._packed import packed
from firsttouch.mm.buddy import NO_PFN, ZEROED
from firsttouch.pool import scrubber
from firsttouch.pool import state as h
from firsttouch.pool.arena import check
from firsttouch.pool.lifecycle import Options, Pool
from firsttouch.pool.numpy_api import NumpyApi

PAGE = h.PAGE_BYTES
WORD = ctypes.PYFUNCTYPE(c_int64, c_int64, c_int64)
WORDS = ctypes.PYFUNCTYPE(c_int64, c_int64, c_int64, c_int64)
NOTHING = ctypes.PYFUNCTYPE(None, c_int64, c_int64, c_int64)


@kernel
def now_ns() -> int:
    """The clock that frees are stamped with."""
    return int(clock_ns())


class Bare:
    """A pool of `nr_bytes`, not installed, without its thread."""

    def __init__(self, nr_bytes: int, **options: object) -> None:
        self.pool = Pool(NumpyApi(), nr_bytes, Options(**{"threshold": PAGE, "scrub": False, "age": "0ns"} | options))
        self.ctx = self.pool.ctx
        self.arena, self.packed = self.pool.arena, packed(self.pool.arena)
        self.base = self.arena.base_address
        code = self.pool.code
        self._malloc, self._calloc = WORD(code["pool_malloc"]), WORDS(code["pool_calloc"])
        self._realloc, self._free = WORDS(code["pool_realloc"]), NOTHING(code["pool_free"])

    def malloc(self, nr_bytes: int) -> int:
        return self._malloc(self.ctx, nr_bytes)

    def calloc(self, nr_items: int, item_bytes: int) -> int:
        return self._calloc(self.ctx, nr_items, item_bytes)

    def realloc(self, address: int, nr_bytes: int) -> int:
        return self._realloc(self.ctx, address, nr_bytes)

    def free(self, address: int, nr_bytes: int = 0) -> None:
        self._free(self.ctx, address, nr_bytes)

    def owns(self, address: int) -> bool:
        return self.base <= address < self.base + self.pool.limit_bytes

    def scrub(self, zone: int = 0) -> int:
        return scrubber.scrub_one(self.packed, zone, now_ns() + 1)

    def populate(self, zone: int = 0) -> int:
        return scrubber.populate_one(self.packed, zone)

    def fork_child(self) -> None:
        """What a child does, to this process."""
        self.pool.lock_all(self.ctx)
        self.pool.after_fork_in_child(self.ctx)

    def holds_zeros(self, pfn: int, nr: int) -> bool:
        return not view(self.base + pfn * PAGE, nr * PAGE).any()

    def wrong(self) -> list[str]:
        """Broken invariants, and free memory that should hold zeros and does not."""
        wrong = check(self.arena)
        for name, b in (("faulted", self.arena.faulted), ("unfaulted", self.arena.unfaulted)):
            for pfn in np.flatnonzero(b.order).tolist():
                if b.zeroed[pfn] == ZEROED and not self.holds_zeros(pfn, 1 << (int(b.order[pfn]) - 1)):
                    wrong.append(f"P2: {name} page {pfn}")
        if self.arena.word[h.FLYING_PFN] != NO_PFN:
            wrong.append("a block is in flight")
        return wrong

    def close(self) -> None:
        self.pool._region.unmap()


def view(address: int, nr_bytes: int) -> np.ndarray:
    """The memory at an address."""
    return np.frombuffer((ctypes.c_uint8 * nr_bytes).from_address(address), np.uint8)
