"""FreeBSD 6 in the terms of the event loop: pages from the colour queues, and pagezero as a daemon of the idle class.

How pages are queued is in pageq.py, what pagezero does next in idlezero.py; here both are charged. The functions take
the place of Linux's under a policy that has them; no other policy compiles them. Pagezero is the daemon of node 0
(`World.scrub`): when a CPU is idle daemon.py gives it that one, and `Sched.idle_yield` says when it gives way:

    preemption off         AT_CHECK      it looks for others after each page
    preemption working     AT_ONCE
    preemption broken      AT_SLICE_END  it does not look, and nobody preempts it

Asleep it is awake for daemon.py with a `wait_ns` in the future: the 300 s at which it would look again by itself.

Every page taken or freed takes the one mutex of the free queues.
"""

from firsttouch._jit import inlined
from firsttouch.mm.buddy import NO_PFN, UNZEROED
from firsttouch.mm.fault import advance
from firsttouch.mm.idlezero import SLEEP_NS, next_page, page_zeroed, wants_page
from firsttouch.mm.locks import ZONE, acquire
from firsttouch.mm.pageq import alloc_page, put_page
from firsttouch.mm.parts import part
from firsttouch.mm.scrub import count_scrubbed
from firsttouch.mm.world import SCRUB_NS, World

FREE_QUEUES = 0  # the mutex is in the place of the only zone's lock
NODE = 0  # the daemon


@inlined
def lock_queues(w: World, cpu: int, nr_pages: int) -> int:
    """Take the mutex of the free queues to look at, take, or put `nr_pages`; how long that keeps the CPU."""
    hold_ns, now_ns = nr_pages * w.cost.zone_page, w.sched.clock_ns[cpu]
    return acquire(w.locks, ZONE, FREE_QUEUES, cpu, now_ns, hold_ns, w.cost.handoff, w.cost.waiter)


@part
def take_block(w: World, cpu: int, k: int, want_zeroed: int, _: int) -> int:
    """One page for what the CPU's thread is at: 2 * pfn + zero state, or NO_PFN: none, or a larger block was wanted."""
    if k > 0:
        return NO_PFN
    t = int(w.sched.thread[cpu])
    page = int(w.progress.step[t]) + int(w.progress.mapped[t]) - 1
    colour = (page + int(w.progress.mm[t]) * w.pageq.object_stride) & w.pageq.mask
    pfn, z = alloc_page(w.pageq, w.buddy, colour, want_zeroed != 0)
    advance(w, cpu, lock_queues(w, cpu, 1))
    if pfn == NO_PFN:
        return NO_PFN
    return 2 * pfn + z


@part
def free_folio(w: World, cpu: int, pfn: int, _b: int, _c: int) -> int:
    """Free one page, which holds whatever its user left there; wake pagezero if that leaves it wanting one."""
    put_page(w.pageq, w.buddy, pfn, UNZEROED)
    advance(w, cpu, lock_queues(w, cpu, 1))
    if w.rules.scrub and w.scrub.wait_ns[NODE] > w.sched.clock_ns[cpu] and wants_page(w.idlezero, w.buddy):
        w.scrub.wait_ns[NODE] = 0
        w.scrub.nr_wakeups[NODE] += 1
    return 0


@part
def next_block(w: World, cpu: int, _b: int, _c: int, _d: int) -> int:
    """Pagezero on `cpu`: the page to zero next, whose turn is charged but for the zeroing; NO_PFN: it sleeps."""
    w.scrub.busy[NODE] = 0
    if w.scrub.wait_ns[NODE] > 0:
        w.scrub.wait_ns[NODE] = 0
        w.scrub.nr_wakeups[NODE] += 1  # the 300 s are over
    pfn, nr_turns = NO_PFN, 0
    while pfn == NO_PFN and nr_turns <= w.pageq.mask and wants_page(w.idlezero, w.buddy):
        pfn = next_page(w.idlezero, w.pageq, w.buddy)
        nr_turns += 1
    if pfn == NO_PFN:
        w.scrub.wait_ns[NODE] = w.sched.clock_ns[cpu] + SLEEP_NS
        return NO_PFN
    w.scrub.busy[NODE] = 1
    kept_ns = lock_queues(w, cpu, nr_turns + 1)  # taken for each look, and to put the page back
    w.sched.clock_ns[cpu] += kept_ns
    w.total[SCRUB_NS] += kept_ns
    return pfn


@part
def block_done(w: World, pfn: int, _b: int, _c: int, _d: int) -> int:
    """The page is zeroed."""
    page_zeroed(w.idlezero, w.pageq, w.buddy, pfn)
    w.scrub.busy[NODE] = 0
    count_scrubbed(w.scrub, NODE, w.rules.page_bytes)
    return 0
