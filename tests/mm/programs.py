"""Small random programs, in two forms: steps in one order for the twin, and the same as a workload.

Several threads pass a baton: whoever has it wakes the next one and waits. So the order of touches is that of the steps
on any number of CPUs.
"""

from dataclasses import dataclass
from itertools import pairwise

from hand_workload import Hand
from hypothesis import strategies as st

from firsttouch.workload import (
    ADVISED,
    ANON,
    NOHUGE,
    PROTECTION,
    RACED,
    RECORDED,
    SHARED,
    SHMEM,
    STACK,
    WRITABLE,
    WRITE,
)

NR_PAGES = 3 * 512
RW = ANON | WRITABLE
FLAGS = [
    RW, RW, RW, RW | ADVISED, RW | NOHUGE, RW | STACK, ANON, 0, WRITABLE, WRITABLE | SHARED, WRITABLE | SHARED | SHMEM,
]  # fmt: skip
CUTS = [0, 1, 4, 5, 16, 21, 64, 255, 256, 508, 511, 512, 513, 516, 528, 700, 1023, 1024, 1040, 1200, 1535, 1536]


@dataclass
class Program:
    vmas: list
    steps: list  # as the twin takes them
    hand: Hand


class _Baton:
    """Writes each step for the thread that does it, and passes the baton before."""

    def __init__(self, hand):
        self.hand, self.holder = hand, hand.thread()

    def to(self, thread):
        if thread != self.holder:
            self.hand.wake(self.holder, thread)
            self.hand.wait(self.holder)
            self.holder = thread

    def end(self, thread, heir):
        """The thread, which has the baton, ends; `heir` goes on when it has."""
        self.hand.wake(self.holder, heir)
        self.hand.join(heir, self.holder)
        self.holder = heir


@st.composite
def programs(draw, *, recorded=False, nr_threads=3, nr_spaces=2, max_steps=14):
    cuts = sorted({*draw(st.lists(st.sampled_from(CUTS), min_size=3, max_size=6)), 0, NR_PAGES})
    vmas = [(start, end, draw(st.sampled_from(FLAGS))) for start, end in pairwise(cuts)]
    hand = Hand([3] * nr_spaces)
    for vma in vmas:
        hand.vma(*vma)
    baton, steps = _Baton(hand), []
    space_of = {baton.holder: 0}  # live threads
    nr_used = 1
    for _ in range(draw(st.integers(1, max_steps))):
        thread = draw(st.sampled_from(sorted(space_of)))
        mm = space_of[thread]
        what = draw(st.sampled_from(["touch"] * 8 + ["unmap", "move", "map", "populate", "fork", "thread", "exit"]))
        v = draw(st.integers(0, len(vmas) - 1))
        start, end, _ = vmas[v]
        first = start + draw(st.sampled_from([0, 1, 4, 15, 16, 100, 511])) % (end - start)
        last = min(end, first + draw(st.sampled_from([1, 2, 4, 17, 64, 512])))
        baton.to(thread)
        if what == "touch":
            stride = draw(st.sampled_from([1, 3, 16]))
            kind = draw(st.sampled_from([WRITE, 0]))
            if recorded:
                kind |= draw(st.sampled_from([0, RECORDED, RECORDED, RECORDED]))
                if kind & RECORDED:
                    kind |= draw(st.sampled_from([0, 0, 0, PROTECTION, RACED]))
            for page in range(first, last, stride):
                hand.touch(thread, v, page, kind)
                steps.append(("touch", mm, v, page, kind))
        elif what == "unmap":
            until = min(NR_PAGES, last + draw(st.sampled_from([0, 0, 300])))
            hand.unmap(thread, first, until)
            steps.append(("unmap", mm, first, until))
        elif what == "move":
            alike = [u for u in range(len(vmas)) if vmas[u][2] == vmas[v][2]]
            u = draw(st.sampled_from(alike))
            to = vmas[u][0]
            nr = min(last - first, vmas[u][1] - to)
            if to + nr <= first or first + nr <= to:
                hand.unmap(thread, to, to + nr)
                hand.move(thread, first, first + nr, to)
                steps += [("unmap", mm, to, to + nr), ("move", mm, first, first + nr, to)]
        elif what == "map":
            hand.map(thread, v)
            steps.append(("map", mm, v))
        elif what == "populate":
            hand.populate(thread, v, first, last)
            steps.append(("populate_range", mm, v, first, last))
        elif what == "fork" and nr_used < nr_spaces:
            child = hand.fork(thread, mm=nr_used)
            hand.wait(child)
            space_of[child] = nr_used
            steps.append(("fork", mm, nr_used))
            nr_used += 1
        elif what == "thread" and len(space_of) < nr_threads:
            child = hand.fork(thread)
            hand.wait(child)
            space_of[child] = mm
        elif what == "exit" and thread != 0:
            del space_of[thread]
            if mm not in space_of.values():
                steps.append(("exit", mm))
            baton.end(thread, draw(st.sampled_from(sorted(space_of))))
    for thread in sorted(space_of, reverse=True)[:-1]:
        baton.to(thread)
        mm = space_of.pop(thread)
        if mm not in space_of.values():
            steps.append(("exit", mm))
        baton.end(thread, max(space_of))
    steps.append(("exit", 0))
    baton.to(0)
    return Program(vmas, steps, hand)
