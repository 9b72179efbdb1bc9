"""Which order a fault allocates: THP (order 9) and mTHP (orders 2 to 8), as Linux 6.18 chooses.

What a mapping may use is fixed by the policy's switches and the mapping's advice: one bit an order, `allowed_orders`.
What a fault then uses is the highest such order whose naturally aligned block lies inside the mapping and maps
nothing yet. If no such block of memory is free, the next lower order is tried, at last a single page.

Order 9 is special: it needs the whole region unmapped (no page-table page), and it comes before all others. A read
fault may map the huge zero page there; a write to that allocates a superpage in one fault (Linux 6.13 and later).

Follows Linux thp_vma_suitable_orders(), alloc_anon_folio(), do_huge_pmd_anonymous_page(), do_huge_zero_wp_pmd().
"""

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import state_kernel
from firsttouch.mm.pmap import NO_SLOT, Pmap, all_none
from firsttouch.policy import Superpage
from firsttouch.units import PMD_ORDER, PMD_PAGES
from firsttouch.workload import ADVISED, ANON, NOHUGE, SHARED

MIN_LARGE_ORDER = 2  # there is no order 1 folio of anonymous memory


def allowed_orders(rules: Superpage, vma_flags: NDArray[np.int32]) -> NDArray[np.int32]:
    """[vma] bits of the orders that each mapping may use."""
    always = sum(1 << k for k in rules.mthp_always) | (1 << PMD_ORDER if rules.thp == "always" else 0)
    advised = always | sum(1 << k for k in rules.mthp_madvise) | (1 << PMD_ORDER if rules.thp != "never" else 0)
    private_anon = (vma_flags & (ANON | SHARED)) == ANON
    orders = np.where(vma_flags & ADVISED, advised, always)
    return np.where(private_anon & (vma_flags & NOHUGE == 0), orders, 0).astype(np.int32)


def fault_orders(rules: Superpage, vma_flags: NDArray[np.int32]) -> NDArray[np.int32]:
    """[vma] bits of the orders that faults may use: without superpages where those come by promotion only."""
    orders = allowed_orders(rules, vma_flags)
    return orders if rules.at_first_touch else orders & ~np.int32(1 << PMD_ORDER)


@state_kernel
def superpage_fits(pm: Pmap, slot: int, start: int, end: int, page: int, orders: int) -> bool:
    """Whether the fault may map a whole region: order 9 allowed, inside the mapping, nothing of it mapped."""
    head = page & ~(PMD_PAGES - 1)
    if orders & (1 << PMD_ORDER) == 0 or head < start or head + PMD_PAGES > end:
        return False
    return slot == NO_SLOT or pm.nr_mapped[slot] == 0


@state_kernel
def choose_order(pm: Pmap, slot: int, start: int, end: int, page: int, orders: int) -> int:
    """The order that a write fault at `page` of a mapping [start, end) tries first."""
    if orders == 0:
        return 0
    if superpage_fits(pm, slot, start, end, page, orders):
        return PMD_ORDER
    for k in range(PMD_ORDER - 1, MIN_LARGE_ORDER - 1, -1):
        head = page & ~((1 << k) - 1)
        if orders & (1 << k) and head >= start and head + (1 << k) <= end:
            if slot == NO_SLOT or pm.nr_mapped[slot] == 0:
                return k
            if all_none(pm, slot * PMD_PAGES + (head & (PMD_PAGES - 1)), 1 << k):
                return k
    return 0


@state_kernel
def room_order(pm: Pmap, slot: int, start: int, end: int, page: int) -> int:
    """The highest order whose aligned block around `page` is inside the mapping [start, end) and maps nothing."""
    for k in range(PMD_ORDER, 0, -1):
        head = page & ~((1 << k) - 1)
        if head < start or head + (1 << k) > end:
            continue
        if slot == NO_SLOT or pm.nr_mapped[slot] == 0:
            return k
        if all_none(pm, slot * PMD_PAGES + (head & (PMD_PAGES - 1)), 1 << k):
            return k
    return 0


@state_kernel
def next_order(orders: int, k: int) -> int:
    """The order to try when no block of order `k` is free: the next lower allowed one, at last 0."""
    k -= 1
    while k >= MIN_LARGE_ORDER and orders & (1 << k) == 0:
        k -= 1
    return k if k >= MIN_LARGE_ORDER else 0
