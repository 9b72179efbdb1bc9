"""Locks: who held a line last, until when, and what waiting for it came to.

A lock is a row. A hold is charged when it is taken: its length is known then, because nothing inside it waits. CPUs
ask in the order of their clocks (the step rule of `simulate`), so first come is first served. A lock that another CPU
held last costs a hand-off: its cache line has to travel. Each CPU that spins on the line makes every hand-off slower,
by `waiter_ns`. How many spin follows from the wait: with q of them, each of the q turns ahead takes hold, hand-off and
q * `waiter_ns`, so the wait is q * (hold + handoff) + q**2 * `waiter_ns`.

A line that is written to without a lock (`share`) has no holds, yet it travels to one CPU after another: it is a lock
that is held for no time. A lock goes to whoever asked first; such a line goes to those of its own node first, whose
requests meet in one cache. So the more CPUs of a node wait, the fewer of its turns lead to another node.

Who spins on a test-and-set lock (`acquire_unfair`), as all of Linux 2.6.10 are, has no place in a row. While the line
is on its way to the one CPU that waits, for a hand-off after the release, the CPU that let go still has it: back before
that, it takes the lock again at once, and nobody is later for it. Where more than one waits, another has taken the line
by then. So of two holds with little between them the second costs nothing, while only two CPUs contend.

Invariants:
  L1  `free_at_ns` never decreases
  L2  on one CPU no lock is ever waited for
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import inlined, state_kernel

ZONE, MM, PAGE_TABLE = range(3)
CLASSES = ("zone", "mmap", "page_table")


class Locks(NamedTuple):
    """All locks of a simulation, and their totals by class."""

    free_at_ns: NDArray[np.int64]  # [lock]
    last_cpu: NDArray[np.int32]  # [lock] CPU that had it last, plus 1; 0 = nobody yet
    left_cpu: NDArray[np.int32]  # [lock] the one before it, plus 1, that let go and (acquire_unfair)
    left_ns: NDArray[np.int64]  # [lock] has the line until then
    wait_ns: NDArray[np.int64]  # [class] waiting and hand-offs
    max_wait_ns: NDArray[np.int64]  # [class]
    hold_ns: NDArray[np.int64]  # [class]
    nr_acquired: NDArray[np.int64]  # [class]
    nr_cpus: int
    nr_nodes: int
    remote_ns: int  # a line that comes from a CPU of another node takes longer by this


def make_locks(nr_locks: int, nr_cpus: int = 1, nr_nodes: int = 1, remote_ns: int = 0) -> Locks:
    """Locks that nobody has had."""
    nr = len(CLASSES)
    return Locks(
        np.zeros(nr_locks, np.int64),
        np.zeros(nr_locks, np.int32),
        np.zeros(nr_locks, np.int32),
        np.zeros(nr_locks, np.int64),
        np.zeros(nr, np.int64),
        np.zeros(nr, np.int64),
        np.zeros(nr, np.int64),
        np.zeros(nr, np.int64),
        nr_cpus,
        nr_nodes,
        remote_ns,
    )


class VmaLocks(NamedTuple):
    """What makes a fault fall back from its mapping's lock to mmap_lock."""

    until_ns: NDArray[np.int64]  # [mm] mmap_lock is held for writing until then,
    vma: NDArray[np.int32]  # [mm] and this mapping is locked for writing
    has_anon: NDArray[np.uint8]  # [vma] whether a write has given it its anon_vma


def make_vma_locks(nr_mms: int, nr_vmas: int) -> VmaLocks:
    """No mapping written to yet, no lock held for writing."""
    return VmaLocks(np.zeros(nr_mms, np.int64), np.zeros(nr_mms, np.int32), np.zeros(nr_vmas, np.uint8))


SPINLOCK_BYTES, RWSEM_BYTES, VMA_LOCK_BYTES, MUTEX_BYTES = 4, 40, 8, 32  # 64-bit kernels without debugging


def lock_bytes(
    page_table: str, per_vma: bool, *, nr_zones: int, nr_cpus: int, nr_mms: int, nr_vmas: int, nr_tables: int
) -> dict[str, int]:
    """What the locks of each class take: one for each zone and for each CPU's lists of it, and so on.

    `page_table` and `per_vma` are those of policy.Locks. Address spaces, mappings and page-table pages are counted as
    they exist at one time.
    """
    tables = {"split": SPINLOCK_BYTES * nr_tables, "mm": SPINLOCK_BYTES * nr_mms, "atomic": 0, "global": MUTEX_BYTES}
    return {
        "zone": SPINLOCK_BYTES * nr_zones * (1 + nr_cpus),
        "mmap": RWSEM_BYTES * nr_mms + (VMA_LOCK_BYTES * nr_vmas if per_vma else 0),
        "page_table": tables.get(page_table, 0),
    }


@inlined
def acquire(
    locks: Locks, kind: int, lock: int, cpu: int, now_ns: int, hold_ns: int, handoff_ns: int, waiter_ns: int
) -> int:
    """Take `lock` for `hold_ns`; return how long the CPU is kept: wait, hand-off and hold."""
    wait = max(0, locks.free_at_ns[lock] - now_ns)
    if wait and waiter_ns:
        wait += waiter_ns * spinning(wait, hold_ns + handoff_ns, waiter_ns)
    wait += travel(locks, lock, cpu, handoff_ns, locks.remote_ns)
    locks.free_at_ns[lock] = now_ns + wait + hold_ns
    return count(locks, kind, wait, hold_ns)


@inlined
def acquire_unfair(
    locks: Locks, kind: int, lock: int, cpu: int, now_ns: int, hold_ns: int, handoff_ns: int, waiter_ns: int
) -> int:
    """The same for a test-and-set lock."""
    if locks.left_cpu[lock] == cpu + 1 and now_ns < locks.left_ns[lock]:
        return count(locks, kind, 0, hold_ns)
    before, free_ns = locks.last_cpu[lock], locks.free_at_ns[lock]
    kept_ns = acquire(locks, kind, lock, cpu, now_ns, hold_ns, handoff_ns, waiter_ns)
    locks.left_cpu[lock] = 0 if before == cpu + 1 else before
    locks.left_ns[lock] = max(now_ns, free_ns) + handoff_ns
    return kept_ns


@inlined
def spinning(wait_ns: int, turn_ns: int, waiter_ns: int) -> int:
    """How many CPUs spin, this one included, if the wait is `wait_ns` and a turn takes `turn_ns` when nobody does."""
    ahead = (math.sqrt(turn_ns * turn_ns + 4.0 * waiter_ns * wait_ns) - turn_ns) / (2.0 * waiter_ns)
    return 1 + int(ahead)


@state_kernel
def share(locks: Locks, kind: int, lock: int, cpu: int, now_ns: int, handoff_ns: int, waiter_ns: int) -> int:
    """Write to a line that others write to as well, without a lock; return how long the CPU is kept."""
    wait = max(0, locks.free_at_ns[lock] - now_ns)
    remote_ns = locks.remote_ns
    if wait and remote_ns:
        remote_ns = remote_part_ns(locks, wait, handoff_ns)
    if wait and waiter_ns:
        wait += waiter_ns * spinning(wait, handoff_ns, waiter_ns)
    wait += travel(locks, lock, cpu, handoff_ns, remote_ns)
    locks.free_at_ns[lock] = now_ns + wait
    return count(locks, kind, wait, 0)


@inlined
def remote_part_ns(locks: Locks, wait_ns: int, handoff_ns: int) -> int:
    """What distance adds to each of the turns of a line, if CPUs of all nodes wait for it for `wait_ns`.

    Up to one CPU a node waits: every turn goes to another node. Above, one in as many as wait on a node.
    """
    waiting = max(wait_ns / (handoff_ns + locks.remote_ns), (wait_ns - locks.nr_nodes * locks.remote_ns) / handoff_ns)
    return int(locks.remote_ns * locks.nr_nodes / max(waiting, locks.nr_nodes))


@inlined
def travel(locks: Locks, lock: int, cpu: int, handoff_ns: int, remote_ns: int) -> int:
    """The line of `lock` comes to `cpu`, from another node in `remote_ns` more; return how long that takes."""
    last = locks.last_cpu[lock]
    locks.last_cpu[lock] = cpu + 1
    if last in (0, cpu + 1):
        return 0
    far = remote_ns > 0 and node_of(locks, last - 1) != node_of(locks, cpu)
    return handoff_ns + remote_ns if far else handoff_ns


@inlined
def node_of(locks: Locks, cpu: int) -> int:
    """The node of a CPU."""
    return int(cpu * locks.nr_nodes // locks.nr_cpus)


@inlined
def count(locks: Locks, kind: int, wait: int, hold_ns: int) -> int:
    """Account for one acquisition; return wait and hold together."""
    locks.wait_ns[kind] += wait
    locks.max_wait_ns[kind] = max(locks.max_wait_ns[kind], wait)
    locks.hold_ns[kind] += hold_ns
    locks.nr_acquired[kind] += 1
    return wait + hold_ns
