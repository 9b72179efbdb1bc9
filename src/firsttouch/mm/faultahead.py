"""How many pages one fault maps beyond its own: fault-around of files, and anticipatory prefaulting.

Linux maps cached pages of a file around a read fault: up to a window of pages that begins at the aligned start of the
window, or at the mapping's start if that is later, and stays inside the mapping and its page-table page. Since the end
is counted from the start, the window slides past the aligned block when the mapping begins inside it.

A trace shows only pages that faulted. So the model maps around a fault exactly the pages that some touch of the trace
will want (an entry nobody touches changes nothing but bytes): those inside the recording kernel's own window are marked
NEAR, because a recorded touch of one proves that it was not in the page cache.

**Anticipatory prefaulting** (Linux, 2004-2005, never merged) is for anonymous memory: a task whose write fault is just
where its last window ended is taken to go on in order, and the next window is twice as long, up to a cap that the
versions set in different ways. A window stays inside the mapping and the page-table page. The **adaptive** window is
the same idea with a memory: it doubles at a fault in order, and halves at one that is not, instead of starting over.

Follows Linux do_fault_around(), filemap_map_pages(); deviations: docs/deviations.md, "fault-around".
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import state_kernel
from firsttouch.mm.pmap import FILE_RO, NEAR, NONE, Pmap, map_pfnless
from firsttouch.units import BASE_PAGE_BYTES, PMD_PAGES

# Prefault.rule
NO_PREFAULT, PREFAULT_V2, PREFAULT_V13, PREFAULT_2005_03, ADAPTIVE = range(5)
PREFAULT_RULES = ("none", "v2", "v13", "2005-03", "adaptive")
_V2_FULL_ORDER = 3  # where V2 puts the order back to when a window reaches the cap


# Around.behind and .ahead, by the advice given for a mapping
ADVICE_NORMAL, ADVICE_RANDOM, ADVICE_SEQUENTIAL = range(3)
SCALINGS = ("none", "floor", "half", "ceil")


class Around(NamedTuple):
    """A BSD's window of resident neighbours: see neighbours.py."""

    behind: NDArray[np.int64]  # [advice] pages
    ahead: NDArray[np.int64]  # [advice] pages
    fills_shared: bool
    after_copies: bool


def make_around(
    rule: str,
    behind_pages: int = 3,
    ahead_pages: int = 4,
    sequential_ahead_pages: int = 7,
    *,
    page_bytes: int = BASE_PAGE_BYTES,
    scaling: str = "none",
    fills_shared: bool = False,
    after_copies: bool = False,
) -> Around:
    """The windows of `rule`, "netbsd" or "freebsd" (which does not look at advice), for pages of `page_bytes`."""
    behind, ahead = [behind_pages, 0, 0], [ahead_pages, 0, sequential_ahead_pages]
    if rule == "freebsd":
        behind, ahead = [behind_pages] * 3, [ahead_pages] * 3
    return Around(
        np.array([scaled_pages(nr, page_bytes, scaling) for nr in behind], np.int64),
        np.array([scaled_pages(nr, page_bytes, scaling) for nr in ahead], np.int64),
        fills_shared,
        after_copies,
    )


def scaled_pages(nr_pages: int, page_bytes: int, scaling: str) -> int:
    """As many bytes as `nr_pages` of 4 KiB, in pages of `page_bytes`, rounded as `scaling` says. Pages of at most 4 KiB
    are not scaled.
    """
    if scaling == "none" or page_bytes <= BASE_PAGE_BYTES:
        return nr_pages
    nr_bytes = nr_pages * BASE_PAGE_BYTES
    add = {"floor": 0, "half": page_bytes // 2, "ceil": page_bytes - 1}[scaling]
    return (nr_bytes + add) // page_bytes


class Prefault(NamedTuple):
    """The rule, and what each task's last window was."""

    rule: int
    max_order: int  # all but V2: no window above 2**max_order pages
    max_pages: int  # V2: a window that would reach this many has just as many
    min_run: int  # faults in order before the first window
    next_page: NDArray[np.int64]  # [thread] page after its last window
    order: NDArray[np.int8]  # [thread]
    last: NDArray[np.int32]  # [thread] pages of its last window
    run: NDArray[np.int32]  # [thread] faults in order so far


def make_prefault(rule: str, max_order: int, max_pages: int, min_run: int, nr_threads: int) -> Prefault:
    """Tasks that have not faulted yet."""
    return Prefault(
        rule=PREFAULT_RULES.index(rule),
        max_order=max_order,
        max_pages=max_pages,
        min_run=min_run,
        next_page=np.full(nr_threads, -1, np.int64),
        order=np.zeros(nr_threads, np.int8),
        last=np.zeros(nr_threads, np.int32),
        run=np.zeros(nr_threads, np.int32),
    )


@state_kernel
def prefault_pages(p: Prefault, t: int, page: int, vma_end: int) -> int:
    """Pages that a write fault of thread `t` at `page` maps, its own included; notes where the window ends."""
    order, nr = 0, 1
    run, last = in_order(p, t, page)
    if p.rule == ADAPTIVE:
        nr = min(2 * last, 1 << p.max_order) if run > p.min_run else max(1, last >> 1)
        return end_window(p, t, page, nr, vma_end)
    if run > p.min_run:
        order, nr = next_window(p, int(p.order[t]))
    p.order[t] = order
    return end_window(p, t, page, nr, vma_end)


@state_kernel
def in_order(p: Prefault, t: int, page: int) -> tuple[int, int]:
    """How many faults of thread `t` came in order, this one included if it does, and the pages of its last window."""
    p.run[t] = p.run[t] + 1 if p.next_page[t] == page else 0
    return int(p.run[t]), int(p.last[t])


@state_kernel
def end_window(p: Prefault, t: int, page: int, nr: int, vma_end: int) -> int:
    """Keep a window of `nr` pages inside the mapping and the page-table page; note where it ends."""
    end = max(page + 1, min(page + nr, vma_end, (page | (PMD_PAGES - 1)) + 1))
    p.next_page[t] = end
    p.last[t] = end - page
    return int(end - page)


@state_kernel
def next_window(p: Prefault, order: int) -> tuple[int, int]:
    """The order to remember and the pages to map after a window of `order`, when the fault came in order."""
    order += 1
    if p.rule == PREFAULT_V2:
        if 1 << order >= p.max_pages:
            return _V2_FULL_ORDER, p.max_pages
    elif p.rule == PREFAULT_V13:
        order = min(order, p.max_order)
    elif order > p.max_order:
        return 0, 1  # the guard of March 2005 sends the fault back to one page, and starts over
    return order, 1 << order


@state_kernel
def around_window(start: int, end: int, page: int, window: int) -> tuple[int, int]:
    """First page and page after the last of the window around `page`, for a mapping [start, end)."""
    p = page & (PMD_PAGES - 1)
    offset = page - start
    first = max(p & ~(window - 1), p - min(p, offset))
    last = min(first + window, PMD_PAGES, p + (end - page)) - 1
    return page - p + first, page - p + last + 1


@state_kernel
def map_around(pm: Pmap, slot: int, start: int, end: int, page: int, window: int, recorded_window: int) -> int:
    """Map the pages around a read fault whose own page is mapped already; return how many."""
    first, last = around_window(start, end, page, window)
    near_first, near_last = around_window(start, end, page, recorded_window)
    base = slot * PMD_PAGES
    nr = 0
    for other in range(first, last):
        entry = base + (other & (PMD_PAGES - 1))
        if pm.state[entry] == NONE:
            map_pfnless(pm, slot, entry, FILE_RO | NEAR if near_first <= other < near_last else FILE_RO)
            nr += 1
    return nr
