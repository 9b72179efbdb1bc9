"""How many pages one fault maps beyond its own: fault-around of files.

Linux maps cached pages of a file around a read fault: up to a window of pages that begins at the aligned start of the
window, or at the mapping's start if that is later, and stays inside the mapping and its page-table page. Since the end
is counted from the start, the window slides past the aligned block when the mapping begins inside it.

A trace shows only pages that faulted. So the model maps around a fault exactly the pages that some touch of the trace
will want (an entry nobody touches changes nothing but bytes): those inside the recording kernel's own window are marked
NEAR, because a recorded touch of one proves that it was not in the page cache.

Follows Linux do_fault_around(), filemap_map_pages(); deviations: docs/deviations.md, "fault-around".
"""

from firsttouch._jit import state_kernel
from firsttouch.mm.pmap import FILE_RO, NEAR, NONE, Pmap, map_pfnless
from firsttouch.units import PMD_PAGES


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
