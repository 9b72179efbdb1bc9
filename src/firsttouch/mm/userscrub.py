"""What a scrubber zeroes next, where a user's function decides it: a part in place of `scrub.next_block`.

The daemon wakes at every free that reaches the zone's lists, and gets idle CPUs, as any. Then the function is asked for
each block. Where the zone has none of the order it names, the next higher one is taken; if there is none, it sleeps.
"""

from firsttouch.mm.buddy import NO_PFN, UNZEROED, take_head
from firsttouch.mm.hooks import SCRUB, call, note_failure, settle
from firsttouch.mm.load import FSHIFT
from firsttouch.mm.parts import part
from firsttouch.mm.scrub import DAY_NS, in_window
from firsttouch.mm.world import World

MS_NS = 1_000_000
LONGEST_WAIT_MS = 86_400_000
ORDER_SHIFT = 32


@part
def next_block(w: World, cpu: int, node: int, _c: int, _d: int) -> int:
    """The pfn of the block to zero, and its order from bit ORDER_SHIFT on; NO_PFN: the daemon sleeps or waits."""
    s, b = w.scrub, w.buddy
    s.busy[node] = 0
    now_ns = int(w.sched.clock_ns[cpu])
    orders, top = 0, b.first.shape[2] - 1
    for k in range(top + 1):
        if b.first[node, UNZEROED, k] != NO_PFN:
            orders |= 1 << k
    if orders == 0 or not in_window(w.scrub_rules, now_ns):
        s.awake[node] = 0
        return NO_PFN
    load, now_ms = int(w.load.avenrun[0]) * 100 >> FSHIFT, now_ns % DAY_NS // MS_NS
    free, zeroed, last = int(b.free_pages[node]), int(b.zero_pages[node]), int(s.next_order[node]) - 1
    answer = call(w.hooks.scrub, orders, free, zeroed, load, now_ms, last)
    note_failure(w.answers, SCRUB, answer, orders, free, zeroed, load, now_ms, last)
    k = settle(w.answers, SCRUB, answer, -LONGEST_WAIT_MS, top) if w.answers.failed[SCRUB] == 0 else -1
    if k < -1:
        s.wait_ns[node] = now_ns - k * MS_NS
        return NO_PFN
    while 0 <= k <= top and orders & (1 << k) == 0:
        k += 1
    if k < 0 or k > top:
        s.awake[node] = 0
        return NO_PFN
    s.busy[node] = 1
    s.pass_blocks[node] += 1
    s.next_order[node] = k + 1
    return take_head(b, node, k, UNZEROED) | k << ORDER_SHIFT
