"""Which parts a policy has: the code that its kernel has and linux-6.18 has not."""

from __future__ import annotations

from typing import Any

import numpy as np

from firsttouch._packed import packed
from firsttouch.mm import (
    balance,
    fault,
    freebsd,
    khugepaged,
    locks,
    neighbours,
    tablepages,
    userscrub,
    vmfault,
    vmlocks,
    vmspace,
)
from firsttouch.mm.hooks import Hooks
from firsttouch.mm.outcome import LockUse
from firsttouch.mm.parts import NO_PARTS, Part
from firsttouch.mm.pmap import LEAST_FREE_SLOTS
from firsttouch.mm.promotion import promotes
from firsttouch.mm.vmobject import NR_PAGE_LOCKS, RWLOCK_BYTES
from firsttouch.mm.world import PEAK_MMS, World
from firsttouch.policy import Policy
from firsttouch.workload import ANON


def parts_of(policy: Policy, hooks: Hooks) -> dict[str, Part]:
    """The parts of `policy` and of a user's functions, by their places in `World.parts`."""
    parts = {"touch": fault.touch, "take_block": fault.take_from_lists, "free_folio": fault.free_to_lists}
    if policy.percpu.rules == "page-queues":
        parts |= {"take_block": freebsd.take_block, "free_folio": freebsd.free_folio}
    if policy.zero.scrub == "pagezero":
        parts |= {"next_block": freebsd.next_block, "block_done": freebsd.block_done}
    if hooks.scrub != 0:
        parts |= {"next_block": userscrub.next_block}
    if promotes(policy.superpage) or hooks.promote != 0:
        parts |= {
            "promote_step": khugepaged.promote_step,
            "promote_in_fault": khugepaged.in_fault,
            "promote_fork": khugepaged.fork,
        }
    if policy.locks.page_table == "mm":
        parts["spin"] = fault.spin
    if policy.sched.placement == "balance":
        parts["look_for_threads"] = balance.look_for_threads
    if policy.kernel == "freebsd-13":
        return parts | {"touch": vmfault.touch, "event": vmspace.event}
    if policy.fault_ahead.neighbours == "netbsd":
        parts["neighbours"] = neighbours.netbsd_neighbours
    elif policy.fault_ahead.neighbours == "freebsd":
        parts["neighbours"] = neighbours.freebsd_neighbours
    if not policy.fault_ahead.fork_maps:
        parts["fork_tables"] = neighbours.fork_without_tables
    if policy.zero.table_pages != "in-trap":
        parts |= {"table_needed": tablepages.table_needed, "table_freed": tablepages.table_freed}
    return parts


def with_parts(world: World, policy: Policy, other_event: Part) -> World:
    """`world` with the parts of `policy`, and that of the event loop, compiled and in their places."""
    parts = parts_of(policy, world.hooks) | {"other_event": other_event}
    layout = packed(world)
    return world._replace(parts=NO_PARTS._replace(**{place: part.place(layout) for place, part in parts.items()}))


def lock_uses(w: World, policy: Policy) -> dict[str, LockUse]:
    """What became of each class of locks, by the names of the policy's kernel."""

    def use(table: Any, i: int) -> LockUse:
        columns = [table.nr_acquired, table.wait_ns, table.max_wait_ns, table.hold_ns]
        if hasattr(table, "contended_ns"):
            columns.append(table.contended_ns)
        return LockUse(*(int(column[i]) for column in columns))

    if policy.kernel == "linux":
        return {name: use(w.locks, i) for i, name in enumerate(locks.CLASSES)}
    uses = {name: use(w.vmlocks, i) for i, name in enumerate(vmlocks.CLASSES)}
    return {**uses, vmlocks.FREE_QUEUE: use(w.locks, locks.ZONE)}


def lock_bytes(w: World, policy: Policy) -> dict[str, int]:
    """What the locks of each class take at most."""
    nr_zones, nr_mms = len(w.buddy.free_pages), int(w.total[PEAK_MMS])
    if policy.kernel == "linux":
        return locks.lock_bytes(
            policy.locks.page_table,
            policy.locks.per_vma,
            nr_zones=nr_zones,
            nr_cpus=len(w.sched.clock_ns),
            nr_mms=nr_mms,
            nr_vmas=len(np.unique(w.vmas.start)),
            nr_tables=len(w.pmap.nr_mapped) - int(w.pmap.counts[LEAST_FREE_SLOTS]),
        )
    line_bytes, nr_files = w.rules.line_bytes, len(np.unique(w.vmobject.file[w.vmas.flags & ANON == 0]))
    pv_lock_bytes = line_bytes if policy.locks.pv_lists == "superpage" else RWLOCK_BYTES
    sizes = (
        pv_lock_bytes * int(w.pv.nr_locks),
        RWLOCK_BYTES * (nr_mms + nr_files),
        RWLOCK_BYTES * nr_mms,
        line_bytes * NR_PAGE_LOCKS,
        line_bytes * len(w.bus.free_at_ns),
        line_bytes,
        RWLOCK_BYTES,
    )
    return {**dict(zip(vmlocks.CLASSES, sizes, strict=True)), vmlocks.FREE_QUEUE: line_bytes * nr_zones}
