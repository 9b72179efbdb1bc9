"""FreeBSD's locks, which are held across steps: by one writer, by readers, or for a time known beforehand.

A lock of `locks.py` is a hold of known length. Here other locks may be taken inside a hold, so that its end is not
known when it begins: such a hold is *open* until `release`. A CPU that asks in vain waits at the lock: it joins its
queue, and its clock stands at NEVER_NS, so that the event loop passes it by, until a release lets it go on. Queues are
first in, first out; readers that are next to each other in one enter together. A hold of known length needs no
release, and who comes while it lasts does not queue but is given the time at which it ends.

CPUs spin while they wait (the locks are adaptive, and their owners run: nobody who holds an open lock is preempted), so
a wait is CPU time. A lock's line travels to a CPU that has not written it last, to a reader as well, twice: he counts
himself in and out; from a CPU of another node that takes `remote_ns` more. Every CPU that spins makes that slower by
`waiter_ns`. Two locks may share a line.

Invariants:
  V1  open[lock] is OPEN (-1) with one writer, the number of readers, or 0
  V2  a CPU is in at most one queue, and then its clock is NEVER_NS
  V3  a queue is empty unless its lock is open
  V4  held[cpu] open holds belong to a CPU; a thread that leaves its CPU has none
  V5  what classes waited is what CPUs waited

Follows rwlock(9), sx(9), mutex(9) and LOCK_PROFILING; where it does not: docs/deviations.md, "vmlocks".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import inlined, state_kernel
from firsttouch.mm.locks import spinning
from firsttouch.mm.sched import NEVER_NS, NOBODY, Sched

PV_LIST, OBJECT, MAP, PAGE, RESERV, CHUNK_LIST, PROCTREE = range(7)
CLASSES = (
    "pmap pv list",
    "vm object",
    "vm map",
    "vm page",
    "VM reserv domain",
    "pmap pv chunk list",
    "proctree",
)
NR_CLASSES = len(CLASSES)
FREE_QUEUE = "vm page free queue"  # locks.ZONE by FreeBSD's name

OPEN = -1
WRITE, READ = -1, -2  # wishes: an open hold; any other is the length of a hold


class VmLocks(NamedTuple):
    """All locks of a FreeBSD kernel, those of one class together; empty for others."""

    first: NDArray[np.int64]  # [class + 1] its first lock
    per_line: NDArray[np.int64]  # [class] locks that share a cache line
    open: NDArray[np.int32]  # [lock] OPEN, or readers
    free_at_ns: NDArray[np.int64]  # [lock] end of the last hold, or arrival of the last reader
    last_cpu: NDArray[np.int32]  # [lock] of a line's first lock: CPU that wrote the line last, plus 1; 0 = nobody yet
    head: NDArray[np.int32]  # [lock] CPU that waits first, or NOBODY
    tail: NDArray[np.int32]  # [lock] CPU that waits last
    nr_waiting: NDArray[np.int32]  # [lock]
    next: NDArray[np.int32]  # [cpu] who waits behind it, or NOBODY
    wish: NDArray[np.int64]  # [cpu] what it waits for: READ, WRITE, or a hold
    since_ns: NDArray[np.int64]  # [cpu] when it began to wait
    held: NDArray[np.int32]  # [cpu] open holds
    granted: NDArray[np.int64]  # [1] a CPU was let go on, whose clock the running one's limit does not know of
    waited_ns: NDArray[np.int64]  # [cpu]
    wait_ns: NDArray[np.int64]  # [class] waiting and hand-offs
    max_wait_ns: NDArray[np.int64]  # [class]
    hold_ns: NDArray[np.int64]  # [class]
    nr_acquired: NDArray[np.int64]  # [class]
    nr_waited: NDArray[np.int64]  # [class] acquisitions that another CPU's hold delayed
    contended_ns: NDArray[np.int64]  # [class] the wait of those, as lock profiling has it
    charged_ns: NDArray[np.int64]  # [1] CPU time of all that: waits, hand-offs, and holds of known length
    handoff_ns: int
    waiter_ns: int
    nr_nodes: int  # that the CPUs are spread over, in order
    remote_ns: int


def make_vmlocks(
    nr_locks: list[int],
    per_line: list[int],
    nr_cpus: int,
    handoff_ns: int,
    waiter_ns: int,
    nr_nodes: int,
    remote_ns: int,
) -> VmLocks:
    """Locks that nobody has had: how many of each class, how many of them share a line, and what hand-offs cost."""
    first = np.concatenate(([0], np.cumsum(nr_locks))).astype(np.int64)
    total = int(first[-1])
    return VmLocks(
        first=first,
        per_line=np.array(per_line, np.int64),
        open=np.zeros(total, np.int32),
        free_at_ns=np.zeros(total, np.int64),
        last_cpu=np.zeros(total, np.int32),
        head=np.full(total, NOBODY, np.int32),
        tail=np.full(total, NOBODY, np.int32),
        nr_waiting=np.zeros(total, np.int32),
        next=np.full(nr_cpus, NOBODY, np.int32),
        wish=np.zeros(nr_cpus, np.int64),
        since_ns=np.zeros(nr_cpus, np.int64),
        held=np.zeros(nr_cpus, np.int32),
        granted=np.zeros(1, np.int64),
        waited_ns=np.zeros(nr_cpus, np.int64),
        wait_ns=np.zeros(NR_CLASSES, np.int64),
        max_wait_ns=np.zeros(NR_CLASSES, np.int64),
        hold_ns=np.zeros(NR_CLASSES, np.int64),
        nr_acquired=np.zeros(NR_CLASSES, np.int64),
        nr_waited=np.zeros(NR_CLASSES, np.int64),
        contended_ns=np.zeros(NR_CLASSES, np.int64),
        charged_ns=np.zeros(1, np.int64),
        handoff_ns=handoff_ns,
        waiter_ns=waiter_ns,
        nr_nodes=nr_nodes,
        remote_ns=remote_ns,
    )


@state_kernel
def take(v: VmLocks, s: Sched, kind: int, index: int, cpu: int, wish: int) -> None:
    """Ask for lock `index` of a class. The CPU's clock then is when it has it (a hold: has had it), or NEVER_NS."""
    lock = v.first[kind] + index
    held = v.open[lock]
    now_ns = s.clock_ns[cpu]
    if v.head[lock] == NOBODY and (held == 0 or (held > 0 and wish == READ)):
        grant(v, s, kind, lock, cpu, wish, now_ns, now_ns)
        return
    if v.head[lock] == NOBODY:
        v.head[lock] = cpu
    else:
        v.next[v.tail[lock]] = cpu
    v.tail[lock] = cpu
    v.nr_waiting[lock] += 1
    v.wish[cpu] = wish
    v.since_ns[cpu] = now_ns
    s.clock_ns[cpu] = NEVER_NS


@state_kernel
def grant(v: VmLocks, s: Sched, kind: int, lock: int, cpu: int, wish: int, since_ns: int, now_ns: int) -> None:
    """The lock is `cpu`'s from `now_ns` on, or as soon as its last hold ends; `since_ns` is when it asked."""
    hold_ns = max(0, wish)
    wait_ns = max(now_ns, v.free_at_ns[lock]) - since_ns
    was_held = wait_ns > 0
    if was_held:
        v.nr_waited[kind] += 1
        if v.waiter_ns:
            known = int(v.nr_waiting[lock])
            wait_ns += v.waiter_ns * max(known, spinning(wait_ns, hold_ns + v.handoff_ns, v.waiter_ns))
    wait_ns += travel(v, kind, lock, cpu)
    v.contended_ns[kind] += wait_ns if was_held else 0
    begin_ns = since_ns + wait_ns
    if wish == READ:
        v.open[lock] += 1
    elif wish == WRITE:
        v.open[lock] = OPEN
    if wish < 0:
        v.held[cpu] += 1
        v.hold_ns[kind] -= begin_ns
    else:
        v.hold_ns[kind] += hold_ns
    v.free_at_ns[lock] = begin_ns + hold_ns
    s.clock_ns[cpu] = begin_ns + hold_ns
    v.charged_ns[0] += wait_ns + hold_ns
    v.waited_ns[cpu] += wait_ns
    v.wait_ns[kind] += wait_ns
    v.max_wait_ns[kind] = max(v.max_wait_ns[kind], wait_ns)
    v.nr_acquired[kind] += 1


@inlined
def travel(v: VmLocks, kind: int, lock: int, cpu: int) -> int:
    """The line of `lock` comes to `cpu`, perhaps from another node; return how long that takes."""
    line = lock - (lock - v.first[kind]) % v.per_line[kind]
    last = v.last_cpu[line]
    v.last_cpu[line] = cpu + 1
    if last in (0, cpu + 1):
        return 0
    nr_cpus = len(v.held)
    is_far = (last - 1) * v.nr_nodes // nr_cpus != cpu * v.nr_nodes // nr_cpus
    return int(v.handoff_ns + v.remote_ns) if is_far else int(v.handoff_ns)


@state_kernel
def upgrade(v: VmLocks, s: Sched, kind: int, index: int, cpu: int) -> bool:
    """Make `cpu`, a reader, the writer if it is the only reader; else false, and nothing changes."""
    lock = v.first[kind] + index
    if v.open[lock] != 1:
        return False
    write_line(v, s, kind, lock, cpu)
    v.open[lock] = OPEN
    return True


@inlined
def write_line(v: VmLocks, s: Sched, kind: int, lock: int, cpu: int) -> None:
    """A reader writes the line of its lock again."""
    ns = travel(v, kind, lock, cpu)
    s.clock_ns[cpu] += ns
    v.charged_ns[0] += ns
    v.waited_ns[cpu] += ns
    v.wait_ns[kind] += ns


@state_kernel
def release(v: VmLocks, s: Sched, kind: int, index: int, cpu: int) -> None:
    """End an open hold, and let those go on who waited for that."""
    lock = v.first[kind] + index
    if v.open[lock] > 0:
        write_line(v, s, kind, lock, cpu)
        v.open[lock] -= 1
    else:
        v.open[lock] = 0
    now_ns = s.clock_ns[cpu]
    v.hold_ns[kind] += now_ns
    v.held[cpu] -= 1
    if v.open[lock] == 0:
        v.free_at_ns[lock] = max(v.free_at_ns[lock], now_ns)
    while v.head[lock] != NOBODY:
        other = int(v.head[lock])
        wish = int(v.wish[other])
        if v.open[lock] != 0 and (v.open[lock] == OPEN or wish != READ):
            return
        grant(v, s, kind, lock, other, wish, v.since_ns[other], now_ns)
        v.head[lock] = v.next[other]
        v.next[other] = NOBODY
        v.nr_waiting[lock] -= 1
        v.granted[0] = 1


def count_anew(v: VmLocks, now_ns: int) -> None:
    """Set all counters to nothing; of a hold that is open, only what comes after `now_ns` counts."""
    for counter in (v.waited_ns, v.wait_ns, v.max_wait_ns, v.nr_acquired, v.nr_waited, v.contended_ns, v.charged_ns):
        counter[...] = 0
    for kind in range(NR_CLASSES):
        v.hold_ns[kind] = -now_ns * int(np.abs(v.open[v.first[kind] : v.first[kind + 1]]).sum())


def check(v: VmLocks, s: Sched) -> list[str]:
    """Which invariants do not hold, in words. For tests: it walks everything."""
    wrong = []
    waiting: list[int] = []
    for lock in range(len(v.open)):
        queue = []
        cpu = int(v.head[lock])
        while cpu != NOBODY:
            queue.append(cpu)
            cpu = int(v.next[cpu])
        if v.open[lock] < OPEN:
            wrong.append(f"V1: lock {lock} is open {v.open[lock]} times")
        if queue and v.open[lock] == 0:
            wrong.append(f"V3: CPUs {queue} wait for lock {lock}, which nobody holds")
        if len(queue) != v.nr_waiting[lock]:
            wrong.append(f"V2: {len(queue)} CPUs in the queue of lock {lock}, nr_waiting {v.nr_waiting[lock]}")
        waiting += queue
    if len(waiting) != len(set(waiting)) or any(s.clock_ns[cpu] != NEVER_NS for cpu in waiting):
        wrong.append(f"V2: CPUs {waiting} wait, with clocks {s.clock_ns[waiting]}")
    nr_open = int(np.where(v.open == OPEN, 1, v.open).sum())
    if nr_open != v.held.sum():
        wrong.append(f"V4: {nr_open} open holds, CPUs say {v.held.sum()}")
    if v.wait_ns.sum() != v.waited_ns.sum():
        wrong.append(f"V5: classes waited {v.wait_ns.sum()} ns, CPUs {v.waited_ns.sum()} ns")
    return wrong
