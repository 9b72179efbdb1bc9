"""The mappings of one address space over time, as the event stream of a trace tells them.

A map row gives the kernel's whole VMA after the call, merged neighbours included, so laying it over what is known
replaces that. Ranges never overlap; `vmas` is in address order. A `Vma` is never changed: what changes is replaced,
so a reference to one is a fact about a moment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firsttouch.trace.schema import MAP_SHARED

MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL = 0, 1, 2
MADV_HUGEPAGE, MADV_NOHUGEPAGE = 14, 15

# How the kernel names shared memory: a file behind the mapping, but its pages begin as zeros.
_SHMEM = ("/dev/zero", "/memfd:", "/SYSV", "/dev/shm/", "/anon_hugepage")


@dataclass(frozen=True, slots=True)
class Vma:
    """One mapping; addresses in bytes, [start, end)."""

    start: int
    end: int
    map_id: int
    prot: int
    flags: int
    name: str
    advice: int = 0  # MADV_HUGEPAGE, MADV_NOHUGEPAGE or 0
    access: int = MADV_NORMAL  # MADV_RANDOM, MADV_SEQUENTIAL or MADV_NORMAL

    @property
    def is_file(self) -> bool:
        """A file, or shared memory, is behind it."""
        return (self.name.startswith("/") and not self.name.startswith("//anon")) or self.is_shmem

    @property
    def is_shmem(self) -> bool:
        """Shared anonymous memory: its pages begin as zeros, whoever touches them first."""
        return self.name.startswith(_SHMEM) or (self.name == "//anon" and bool(self.flags & MAP_SHARED))


class VmaMap:
    """The mappings of one address space. Addresses are bytes."""

    def __init__(self) -> None:
        self.vmas: list[Vma] = []
        self._starts: list[int] = []
        self._array: NDArray[np.uint64] | None = None

    def map(self, start: int, end: int, map_id: int, prot: int, flags: int, name: str) -> None:
        """The kernel says that one mapping now spans [start, end). Advice given to what it grew from stays."""
        old = self._overlapping(start, end)
        advice = next((vma.advice for vma in old if vma.advice and vma.name == name), 0)
        access = next((vma.access for vma in old if vma.access and vma.name == name), MADV_NORMAL)
        self._splice(start, end, [Vma(start, end, map_id, prot, flags, name, advice, access)])

    def unmap(self, start: int, end: int) -> None:
        """[start, end) is mapped no longer."""
        self._splice(start, end, [])

    def move(self, start: int, end: int, to_start: int, to_end: int) -> None:
        """mremap: what was at [start, end) is at [to_start, to_end), which may be longer or shorter."""
        old = self._overlapping(start, end)
        if not old:
            return
        if start != to_start:
            self._splice(start, end, [])
        elif to_end < end:
            self._splice(to_end, end, [])
        self._splice(to_start, to_end, [replace(old[0], start=to_start, end=to_end)])

    def advise(self, start: int, end: int, advice: int) -> None:
        """madvise: what is said of huge pages, and of the order of accesses, sticks to a mapping (and splits it)."""
        of_pages = advice in (MADV_HUGEPAGE, MADV_NOHUGEPAGE)
        if not of_pages and advice not in (MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL):
            return
        for vma in self._overlapping(start, end):
            piece = replace(vma, start=max(vma.start, start), end=min(vma.end, end))
            piece = replace(piece, advice=advice) if of_pages else replace(piece, access=advice)
            self._splice(piece.start, piece.end, [piece])
        self._merge(start, end)

    def copy(self) -> VmaMap:
        """The same mappings for a child made by fork."""
        child = VmaMap()
        child.vmas, child._starts = list(self.vmas), list(self._starts)
        return child

    def find(self, addresses: NDArray[Any]) -> NDArray[np.int32]:
        """For each address (uint64[n]) the index into `vmas` of the mapping that holds it, or -1."""
        if not self.vmas:
            return np.full(len(addresses), -1, np.int32)
        if self._array is None:
            self._array = np.array([(vma.start, vma.end) for vma in self.vmas], np.uint64)
        at = np.searchsorted(self._array[:, 0], addresses, side="right").astype(np.int32) - 1
        return np.where((at >= 0) & (addresses < self._array[at, 1]), at, -1).astype(np.int32)

    def near(self, start: int, end: int) -> list[Vma]:
        """The mappings that overlap or touch [start, end)."""
        return self._overlapping(max(0, start - 1), end + 1)

    def _overlapping(self, start: int, end: int) -> list[Vma]:
        return self.vmas[slice(*self._span(start, end))]

    def _span(self, start: int, end: int) -> tuple[int, int]:
        """Indices [i, j) of the mappings that overlap [start, end)."""
        i = bisect_right(self._starts, start)
        if i and self.vmas[i - 1].end > start:
            i -= 1
        return i, max(i, bisect_left(self._starts, end))

    def _splice(self, start: int, end: int, new: list[Vma]) -> None:
        """Put `new` in place of [start, end), keeping what overlapping mappings have outside it."""
        i, j = self._span(start, end)
        rest = []
        for vma in self.vmas[i:j]:
            if vma.start < start:
                rest.append(replace(vma, end=start))
            if vma.end > end:
                rest.append(replace(vma, start=end))
        rows = sorted([*rest, *new], key=lambda vma: vma.start)
        self.vmas[i:j] = rows
        self._starts[i:j] = [vma.start for vma in rows]
        self._array = None

    def _merge(self, start: int, end: int) -> None:
        """Join neighbours around [start, end) that are alike, as the kernel does; the first one's map_id stays."""
        i, j = self._span(max(0, start - 1), end + 1)
        rows: list[Vma] = []
        for vma in self.vmas[i:j]:
            last = rows[-1] if rows else None
            if last and last.end == vma.start and not vma.is_file and _alike(last, vma):
                rows[-1] = replace(last, end=vma.end)
            else:
                rows.append(vma)
        self.vmas[i:j] = rows
        self._starts[i:j] = [vma.start for vma in rows]
        self._array = None


def _alike(one: Vma, other: Vma) -> bool:
    """Whether two neighbours of anonymous memory differ in nothing that keeps them apart."""
    fields = attrgetter("prot", "flags", "name", "advice", "access")
    return bool(fields(one) == fields(other))
