"""What each step of the model is charged: a machine's costs, rounded once to whole nanoseconds.

Blocks are indexed by order. What the machine file leaves open follows from what it has: a block's share per base page
is its cost divided by its pages.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch.errors import FirsttouchError
from firsttouch.machine import Machine
from firsttouch.mm.zeroing import Registry, bte, method_ns, zero_table
from firsttouch.policy import Policy

MAX_ORDER = 10
NR_ORDERS = MAX_ORDER + 1


class CostTable(NamedTuple):
    """Nanoseconds."""

    trap: int
    alloc: int  # order 0, list refills taken off: those are charged when they happen
    alloc_large: NDArray[np.int64]  # [order] allocate and map one block
    map_page: int
    file_map: int
    copy_page: int
    unmap_page: int  # one base page that was mapped by itself
    unmap_share: NDArray[np.int64]  # [order] one base page of a block that was mapped whole
    populate_page: int  # zeroing not included
    zero: NDArray[np.int64]  # [order] in the fault
    leaves_cold: NDArray[np.uint8]  # [order] whether what the fault zeroed is in no cache
    zero_temporal: NDArray[np.int64]  # [order] in the recorded fault
    scrub: NDArray[np.int64]  # [order] ahead of use: CPU time
    scrub_elapsed: NDArray[np.int64]  # [order] the same until it is done: longer where an engine is polled
    zero_hot_page: int  # a page that this CPU freed just now
    touch_page: int  # what the user pays for the lines of a page zeroed just now; 0 in a recording, whose gaps hold it
    cold_page: int  # what the user pays more for a page whose lines are in no cache
    walk: int  # the part of `trap` that one lock for all page tables is held to find the entry
    install: int  # the part of `trap` that a page table's lock is held to write the entry
    handoff: int
    waiter: int  # what each spinning CPU adds to a hand-off
    read_page: int  # read all lines of a page that is in no cache
    table_page: int  # a page-table page is made, or given back, beyond the page itself
    scan_entry: int  # a daemon looks at one entry and its page
    line_waiter: int  # the same for a line that is written to without a lock
    zone_page: int  # one page moved between lists under the zone lock
    remote_page: int  # zeroing a base page of another node takes longer by this
    remote_cold_page: int  # what its user pays more if that page is another node's
    remote_handoff: int  # a hand-off from a CPU of another node takes longer by this
    # Zeroing a page moves each line over the bus twice: it is fetched, and written back. Copying moves three for each.
    bus_copy_page: int
    bus_cold_page: int  # what fetching the user's lines of a cold page takes of the bus
    bus_page: int  # least time from base page to base page that the CPUs of a node zero
    write_drain: int  # what the user waits for stores of a fault that went past the caches
    sync_page: int  # making the instruction cache coherent for a page of code, where a fault has to
    tlb_reload: int  # what the user pays for a TLB entry that a neighbour's took
    syscall: int
    record: int  # what recording added to each recorded fault


def leaves_lines_cold(machine: Machine, method: str) -> bool:
    """Whether memory that `method` zeroed is in no cache afterwards."""
    return method == "nontemporal" or machine.zero[method].leaves_cold


def in_extents(whole: NDArray[np.int64], extent_pages: int) -> NDArray[np.int64]:
    """[order] zeroing blocks in runs of `extent_pages` (a power of two), where a block at once takes `whole`."""
    k = min(extent_pages.bit_length() - 1, len(whole) - 1)
    return np.where(np.arange(len(whole)) <= k, whole, whole[k] << np.maximum(np.arange(len(whole)) - k, 0))


def cost_table(machine: Machine, policy: Policy, lines_touched: int, level: str) -> CostTable:
    """The charges of `policy` on `machine`, for a user who touches `lines_touched` lines of each page.

    `level` is that of the recording ("basic", "full"), or "" for a generator. A zeroing method that the machine file
    does not have is an error that names it.
    """
    cost = machine.cost

    def blocks(method: str) -> NDArray[np.int64]:
        if method not in machine.zero:
            raise FirsttouchError(
                f"machine {machine.name} has no cost for zeroing method {method!r}, which policy {policy.name} uses",
                f"it has {', '.join(machine.zero)}; measure this host: firsttouch calibrate",
            )
        sizes = [machine.page_bytes << k for k in range(NR_ORDERS)]
        return np.array([round(machine.zero[method].ns(size, hot=False)) for size in sizes], np.int64)

    def large(costs: list[float]) -> NDArray[np.int64]:
        known = [*costs, *[costs[-1] * 2] * NR_ORDERS][:NR_ORDERS]
        return np.array([round(ns) for ns in known], np.int64)

    zero, leaves_cold = blocks(policy.zero.method), np.zeros(NR_ORDERS, np.uint8)
    leaves_cold[:] = leaves_lines_cold(machine, policy.zero.method)
    if policy.zero.extent_bytes > machine.page_bytes:
        method, nr_bytes = policy.zero.extent_method, policy.zero.extent_bytes
        zero[1:] = in_extents(blocks(method), nr_bytes // machine.page_bytes)[1:]
        leaves_cold[1:] = leaves_lines_cold(machine, method)
    unmap = large(cost.unmap_large)
    share = np.array([round(ns / (1 << k)) for k, ns in enumerate(unmap)], np.int64)
    share[0] = round(cost.unmap_page.ns)
    zone_page = round(cost.zone_page.ns)
    record = {"basic": cost.record_basic.ns, "full": cost.record_full.ns}.get(level, 0.0)
    temporal = blocks("temporal")
    drivers = Registry()
    if policy.zero.scrub_driver == "bte":
        drivers.register(bte(machine.line_bytes, polled=policy.zero.scrub in ("scrubd-v2", "scrubd-v3")))
    scrub = zero_table(machine, policy.zero.scrub_method, NR_ORDERS, drivers=drivers)
    lines = min(lines_touched, machine.page_bytes // machine.line_bytes)
    return CostTable(
        trap=round(cost.trap.ns),
        alloc=max(0, round(cost.alloc.ns) - zone_page),
        alloc_large=large(cost.alloc_large),
        map_page=round(cost.map_page.ns),
        file_map=round(cost.file_map.ns),
        copy_page=round(cost.copy_page.ns),
        unmap_page=round(cost.unmap_page.ns),
        unmap_share=share,
        populate_page=max(0, round(cost.populate_page.ns) - int(temporal[0])),
        zero=zero,
        leaves_cold=leaves_cold,
        zero_temporal=temporal,
        scrub=scrub.cpu_ns,
        scrub_elapsed=scrub.elapsed_ns,
        zero_hot_page=method_ns(machine, policy.zero.method, machine.page_bytes, hot=True),
        touch_page=0 if level else round(lines * cost.line_hot.ns),
        cold_page=max(0, round(lines * (cost.line_cold.ns - cost.line_hot.ns))),
        walk=round(cost.table_walk.ns),
        install=round(cost.table_install.ns),
        handoff=round(cost.lock_handoff.ns),
        waiter=round(cost.lock_waiter.ns),
        line_waiter=round(cost.line_waiter.ns),
        read_page=round(machine.page_bytes // machine.line_bytes * cost.line_cold.ns),
        table_page=round(cost.table_page.ns),
        scan_entry=round(cost.scan_entry.ns),
        zone_page=zone_page,
        remote_page=round(cost.remote_page.ns),
        remote_cold_page=round(lines * cost.remote_line.ns),
        remote_handoff=round(cost.remote_handoff.ns),
        bus_copy_page=round(cost.bus_page.ns * 3 / 2),
        bus_cold_page=round(cost.bus_page.ns / 2 * lines * machine.line_bytes / machine.page_bytes),
        bus_page=round(cost.bus_page.ns),
        write_drain=round(cost.write_drain.ns) if leaves_lines_cold(machine, policy.zero.method) else 0,
        sync_page=round(cost.sync_page.ns),
        tlb_reload=round(cost.tlb_reload.ns),
        syscall=round(cost.syscall.ns),
        record=round(record),
    )
