"""pv entries: who maps a page, kept in chunks; and which lock guards the list of a page's entries.

Every mapped page of FreeBSD has an entry on the pv list of its physical page. Entries come in *chunks* of one page,
168 to a chunk, and a chunk belongs to one address space. A new entry takes the lowest free place of the first chunk of
its address space; a chunk that is full goes to the end of the list, and comes back to its front when a place is freed.
So an address space needs a new chunk only when all it has are full. One that is empty is given up.

The lists of all pages of a superpage frame (2 MiB of physical memory) share a lock: number `frame % nr_locks`. With
fewer locks than frames, frames collide; with as many, none do. Cached pages of files lie behind the programs' memory
(`Files`), so that the processes that map a file also meet at its locks.

Invariants:
  C1  place_of[entry] and entry[place] point to each other; a mapped page-table entry has a place, others NO_PLACE
  C2  nr_free[chunk] places of a chunk are free, and none below lowest[chunk]
  C3  a chunk is on the list of one address space, or on the stack of free ones, or with a thread that gives it up
  C4  chunks with free places come first on their list
  C5  an address space has no chunk without entries

Follows amd64 pmap.c: get_pv_entry(), free_pv_entry(), PHYS_TO_PV_LIST_LOCK(); where it does not: docs/deviations.md,
"pv".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import inlined, state_kernel
from firsttouch.units import PMD_ORDER, PMD_PAGES

CHUNK_ENTRIES = 168
CLUSTER_PAGES = 16  # that are read from a file together
NO_CHUNK = NO_PLACE = NO_ENTRY = int(np.iinfo(np.int32).min)

# counts[]
FREE_CHUNKS, NR_CREATED, NR_DESTROYED, PEAK_CHUNKS = range(4)


class Files(NamedTuple):
    """Where mapped files are cached: CLUSTER_PAGES pages of a file are in one frame."""

    first: NDArray[np.int64]  # [vma] first cluster of its file
    skipped: NDArray[np.int64]  # [vma] pages of the file before its first page
    frame: NDArray[np.int32]  # [cluster]


class Pv(NamedTuple):
    """pv entries of all address spaces. A place is chunk * CHUNK_ENTRIES + index. Empty for other kernels."""

    entry: NDArray[np.int32]  # [place] page-table entry, or NO_ENTRY
    frame: NDArray[np.int32]  # [place] superpage frame of the page
    place_of: NDArray[np.int32]  # [page-table entry] or NO_PLACE
    nr_free: NDArray[np.int16]  # [chunk]
    lowest: NDArray[np.int16]  # [chunk] no index below is free
    next: NDArray[np.int32]  # [chunk] on its address space's list, or NO_CHUNK
    prev: NDArray[np.int32]  # [chunk]
    first: NDArray[np.int32]  # [mm] or NO_CHUNK
    last: NDArray[np.int32]  # [mm] or NO_CHUNK
    free_chunks: NDArray[np.int32]  # stack, counts[FREE_CHUNKS] deep
    counts: NDArray[np.int64]
    files: Files
    nr_locks: int
    batch: bool  # chunks emptied at exit are freed together, after the list's lock is dropped


def make_pv(nr_mms: int, nr_slots: int, files: Files, nr_pages: int, nr_locks: int, batch: bool) -> Pv:
    """No entries, and room for what `nr_slots` page-table pages can map. `nr_locks` 0: one a frame of `nr_pages`."""
    nr_entries = nr_slots * PMD_PAGES
    nr_chunks = -(-nr_entries // CHUNK_ENTRIES) + nr_mms if nr_slots else 0
    counts = np.zeros(4, np.int64)
    counts[FREE_CHUNKS] = nr_chunks
    return Pv(
        entry=np.full(nr_chunks * CHUNK_ENTRIES, NO_ENTRY, np.int32),
        frame=np.zeros(nr_chunks * CHUNK_ENTRIES, np.int32),
        place_of=np.full(nr_entries, NO_PLACE, np.int32),
        nr_free=np.full(nr_chunks, CHUNK_ENTRIES, np.int16),
        lowest=np.zeros(nr_chunks, np.int16),
        next=np.full(nr_chunks, NO_CHUNK, np.int32),
        prev=np.full(nr_chunks, NO_CHUNK, np.int32),
        first=np.full(nr_mms, NO_CHUNK, np.int32),
        last=np.full(nr_mms, NO_CHUNK, np.int32),
        free_chunks=np.arange(nr_chunks - 1, -1, -1, dtype=np.int32),
        counts=counts,
        files=files,
        nr_locks=nr_locks or -(-nr_pages // PMD_PAGES),
        batch=batch,
    )


@inlined
def frame_of(page: int) -> int:
    """The superpage frame of a page of memory."""
    return page >> PMD_ORDER


@inlined
def needs_chunk(pv: Pv, mm: int) -> bool:
    """Whether the next entry of an address space needs a new chunk."""
    chunk = pv.first[mm]
    return bool(chunk == NO_CHUNK or pv.nr_free[chunk] == 0)


@inlined
def push_front(pv: Pv, mm: int, chunk: int) -> None:
    """Put a chunk at the front of its address space's list."""
    old = pv.first[mm]
    pv.next[chunk] = old
    pv.prev[chunk] = NO_CHUNK
    if old == NO_CHUNK:
        pv.last[mm] = chunk
    else:
        pv.prev[old] = chunk
    pv.first[mm] = chunk


@inlined
def unlink(pv: Pv, mm: int, chunk: int) -> None:
    """Take a chunk off its address space's list."""
    after, before = pv.next[chunk], pv.prev[chunk]
    if before == NO_CHUNK:
        pv.first[mm] = after
    else:
        pv.next[before] = after
    if after == NO_CHUNK:
        pv.last[mm] = before
    else:
        pv.prev[after] = before
    pv.next[chunk] = NO_CHUNK
    pv.prev[chunk] = NO_CHUNK


@state_kernel
def add_chunk(pv: Pv, mm: int) -> bool:
    """Give an address space an empty chunk; false if there is no room for one."""
    if pv.counts[FREE_CHUNKS] == 0:
        return False
    pv.counts[FREE_CHUNKS] -= 1
    push_front(pv, mm, int(pv.free_chunks[pv.counts[FREE_CHUNKS]]))
    pv.counts[NR_CREATED] += 1
    pv.counts[PEAK_CHUNKS] = max(pv.counts[PEAK_CHUNKS], pv.counts[NR_CREATED] - pv.counts[NR_DESTROYED])
    return True


@state_kernel
def add_entry(pv: Pv, mm: int, entry: int, frame: int) -> None:
    """Note that `entry` maps a page of `frame`. The first chunk has a free place (`needs_chunk` is false)."""
    chunk = int(pv.first[mm])
    place = chunk * CHUNK_ENTRIES + pv.lowest[chunk]
    while pv.entry[place] != NO_ENTRY:
        place += 1
    pv.entry[place] = entry
    pv.frame[place] = frame
    pv.place_of[entry] = place
    pv.lowest[chunk] = place - chunk * CHUNK_ENTRIES + 1
    pv.nr_free[chunk] -= 1
    if pv.nr_free[chunk] == 0 and pv.last[mm] != chunk:
        unlink(pv, mm, chunk)
        pv.prev[chunk] = pv.last[mm]
        pv.next[pv.last[mm]] = chunk
        pv.last[mm] = chunk


@state_kernel
def remove_entry(pv: Pv, mm: int, entry: int) -> int:
    """Forget what `entry` maps; the chunk if that has become empty, now on no list, else NO_CHUNK."""
    place = int(pv.place_of[entry])
    chunk = place // CHUNK_ENTRIES
    pv.entry[place] = NO_ENTRY
    pv.place_of[entry] = NO_PLACE
    pv.lowest[chunk] = min(pv.lowest[chunk], place - chunk * CHUNK_ENTRIES)
    pv.nr_free[chunk] += 1
    if pv.nr_free[chunk] == CHUNK_ENTRIES:
        unlink(pv, mm, chunk)
        return chunk
    if pv.first[mm] != chunk:
        unlink(pv, mm, chunk)
        push_front(pv, mm, chunk)
    return NO_CHUNK


@state_kernel
def change_frame(pv: Pv, entry: int, frame: int) -> None:
    """The entry maps another page."""
    pv.frame[pv.place_of[entry]] = frame


@state_kernel
def move_pv(pv: Pv, source: int, target: int) -> None:
    """What the page-table entry `source` mapped is mapped by `target` of the same address space."""
    place = pv.place_of[source]
    pv.place_of[source] = NO_PLACE
    pv.place_of[target] = place
    pv.entry[place] = target


@state_kernel
def free_chunk(pv: Pv, chunk: int) -> None:
    """Give up a chunk that is empty and on no list."""
    pv.free_chunks[pv.counts[FREE_CHUNKS]] = chunk
    pv.counts[FREE_CHUNKS] += 1
    pv.counts[NR_DESTROYED] += 1
    pv.lowest[chunk] = 0
    pv.next[chunk] = NO_CHUNK


def check(pv: Pv, given_up: int = 0) -> list[str]:
    """Which invariants do not hold, in words; `given_up` chunks are with threads. For tests: it walks everything."""
    wrong = []
    used = np.flatnonzero(pv.entry != NO_ENTRY)
    mapped = np.flatnonzero(pv.place_of != NO_PLACE)
    if len(used) != len(mapped) or not np.array_equal(np.sort(pv.place_of[mapped]), used):
        wrong.append("C1: page-table entries and places do not correspond")
    elif not np.array_equal(pv.entry[pv.place_of[mapped]], mapped):
        wrong.append("C1: a place names another page-table entry")
    free = (pv.entry.reshape(-1, CHUNK_ENTRIES) == NO_ENTRY).sum(axis=1)
    if not np.array_equal(free, pv.nr_free):
        wrong.append(f"C2: chunks {np.flatnonzero(free != pv.nr_free).tolist()} count their free places wrong")
    lists: list[int] = pv.free_chunks[: pv.counts[FREE_CHUNKS]].tolist()
    for mm in range(len(pv.first)):
        chunks: list[int] = []
        before = NO_CHUNK
        chunk = int(pv.first[mm])
        while chunk != NO_CHUNK and len(chunks) <= len(pv.nr_free):
            chunks.append(chunk)
            if pv.prev[chunk] != before:
                wrong.append(f"C3: chunk {chunk} of address space {mm} has {pv.prev[chunk]} before it, not {before}")
            low = int(pv.lowest[chunk])
            if (pv.entry[chunk * CHUNK_ENTRIES : chunk * CHUNK_ENTRIES + low] == NO_ENTRY).any():
                wrong.append(f"C2: chunk {chunk} has a free place below {low}")
            if pv.nr_free[chunk] == CHUNK_ENTRIES:
                wrong.append(f"C5: chunk {chunk} of address space {mm} is empty")
            before, chunk = chunk, int(pv.next[chunk])
        is_full = [bool(pv.nr_free[chunk] == 0) for chunk in chunks]
        if is_full != sorted(is_full):
            wrong.append(f"C4: a full chunk of address space {mm} comes before one with free places")
        lists += chunks
    if len(lists) != len(set(lists)) or len(lists) + given_up != len(pv.nr_free):
        wrong.append(
            f"C3: {len(set(lists))} of {len(lists)} chunks on lists, {given_up} given up, {len(pv.nr_free)} in all"
        )
    return wrong
