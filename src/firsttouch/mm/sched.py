"""CPUs and threads: who runs where, who waits for a CPU, for time, or for another thread.

A thread is READY in one first-in first-out queue, RUNNING on a CPU, SLEEPING until a time, JOINING another thread,
WAITING to be woken by one, or DONE. A CPU runs a thread, a daemon of the idle class (SCRUBBING), or is idle. A thread
that becomes ready takes an idle CPU, its last one if it can; else one that a daemon has; else it queues. With others
queued a thread keeps the CPU for one quantum.

**Own queues** (`own_queues`): each CPU runs only those who queued on it, and when it goes idle those of its node. All
stand in the one ring; `last_cpu` of a READY thread says on which CPU it queues. See balance.py.

**Idle class.** Its daemons run only on CPUs that no thread wants. When one gives way to a thread is `idle_yield`:

  AT_CHECK      when the block or page under way is done: the daemon looks for others then
  AT_ONCE       preempted; the rest of its block is owed (`owed_ns`) until a CPU is idle again
  AT_SLICE_END  never by itself: threads queue, and it keeps its CPU to the end of its slice, as they do

Invariants:
  S1  a thread is in exactly one state; RUNNING threads and CPUs that run one correspond one to one
  S2  no CPU is idle while the queue holds a thread (own queues: one of its node, when it goes idle)
  S3  a CPU's clock is what it was idle (`idle_ns`) and what was charged to it

What it leaves out: docs/deviations.md, "sched".
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import inlined, state_kernel

NEW, READY, RUNNING, SLEEPING, JOINING, WAITING, DONE = range(7)
NOBODY = np.iinfo(np.int32).min
IDLE, BUSY, SCRUBBING = range(3)
NEVER_NS = np.iinfo(np.int64).max

AT_CHECK, AT_ONCE, AT_SLICE_END = range(3)  # when an idle-class daemon gives way
IDLE_YIELDS = ("check", "at-once", "slice-end")

# counts[]: threads queued and the first one's place, sleepers, what threads waited for daemons and in the queue,
# sleepers that wait for I/O
NR_READY, READY_HEAD, NR_TIMERS, LATENCY_NS, QUEUED_NS, NR_IN_IO = range(6)


class Sched(NamedTuple):
    """Threads and CPUs. Times are int64 nanoseconds."""

    state: NDArray[np.uint8]  # [thread]
    next_event: NDArray[np.int64]  # [thread]
    last_cpu: NDArray[np.int32]  # [thread] or NOBODY
    first_joiner: NDArray[np.int32]  # [thread] who waits for its end, or NOBODY
    next_joiner: NDArray[np.int32]  # [thread] the next who waits for the same
    wakes: NDArray[np.int32]  # [thread] WAKEs that came before their WAIT
    queue: NDArray[np.int32]  # [thread] ring of ready threads
    ready_ns: NDArray[np.int64]  # [thread] when it was queued
    in_io: NDArray[np.bool_]  # [thread] sleeps for I/O
    timer_ns: NDArray[np.int64]  # binary heap, counts[NR_TIMERS] long
    timer_thread: NDArray[np.int32]  # the same
    activity: NDArray[np.uint8]  # [cpu] IDLE, BUSY, SCRUBBING
    clock_ns: NDArray[np.int64]  # [cpu]
    thread: NDArray[np.int32]  # [cpu] or NOBODY
    slice_end_ns: NDArray[np.int64]  # [cpu]
    idle_ns: NDArray[np.int64]  # [cpu] with neither thread nor daemon, up to its clock
    begun_ns: NDArray[np.int64]  # [cpu] when its daemon began the block it is at
    owed_ns: NDArray[np.int64]  # [cpu] of the daemon that a thread preempted here
    counts: NDArray[np.int64]
    idle_yield: int  # AT_CHECK, AT_ONCE, AT_SLICE_END
    own_queues: int  # number of nodes, where each CPU has a queue of its own; 0: all have one queue


def make_sched(
    nr_threads: int, nr_cpus: int, first_event: NDArray[np.int64], idle_yield: int = AT_CHECK, own_queues: int = 0
) -> Sched:
    """Idle CPUs, and threads that have not begun."""
    return Sched(
        state=np.zeros(nr_threads, np.uint8),
        next_event=first_event.astype(np.int64),
        last_cpu=np.full(nr_threads, NOBODY, np.int32),
        first_joiner=np.full(nr_threads, NOBODY, np.int32),
        next_joiner=np.full(nr_threads, NOBODY, np.int32),
        wakes=np.zeros(nr_threads, np.int32),
        queue=np.zeros(nr_threads, np.int32),
        ready_ns=np.zeros(nr_threads, np.int64),
        in_io=np.zeros(nr_threads, np.bool_),
        timer_ns=np.zeros(nr_threads, np.int64),
        timer_thread=np.zeros(nr_threads, np.int32),
        activity=np.zeros(nr_cpus, np.uint8),
        clock_ns=np.zeros(nr_cpus, np.int64),
        thread=np.full(nr_cpus, NOBODY, np.int32),
        slice_end_ns=np.zeros(nr_cpus, np.int64),
        idle_ns=np.zeros(nr_cpus, np.int64),
        begun_ns=np.zeros(nr_cpus, np.int64),
        owed_ns=np.zeros(nr_cpus, np.int64),
        counts=np.zeros(6, np.int64),
        idle_yield=idle_yield,
        own_queues=own_queues,
    )


@state_kernel
def wake(s: Sched, thread: int, now_ns: int, quantum_ns: int) -> None:
    """A thread can run from `now_ns` on: give it a CPU, or queue it."""
    best = NOBODY
    last = int(s.last_cpu[thread])
    if s.own_queues > 0 and last != NOBODY and s.activity[last] != IDLE:
        queue_up(s, thread, now_ns)
        return
    if last != NOBODY and s.activity[last] == IDLE:
        best = last
    for cpu in range(len(s.activity)):
        if best == NOBODY and s.activity[cpu] == IDLE:
            best = cpu
    if best == NOBODY and s.own_queues > 0:
        s.last_cpu[thread] = 0
    elif best == NOBODY and s.idle_yield != AT_SLICE_END:
        for cpu in range(len(s.activity)):
            if s.activity[cpu] == SCRUBBING and (best == NOBODY or s.clock_ns[cpu] < s.clock_ns[best]):
                best = cpu
        if best != NOBODY:
            if s.idle_yield == AT_ONCE:
                s.owed_ns[best] = max(0, s.clock_ns[best] - max(now_ns, s.begun_ns[best]))
                s.clock_ns[best] -= s.owed_ns[best]
            s.counts[LATENCY_NS] += max(0, s.clock_ns[best] - now_ns)
    if best == NOBODY:
        queue_up(s, thread, now_ns)
    else:
        run_on(s, best, thread, max(now_ns, s.clock_ns[best]), quantum_ns)


@state_kernel
def queue_up(s: Sched, thread: int, now_ns: int) -> None:
    """A thread waits for a CPU, behind all others."""
    s.queue[(s.counts[READY_HEAD] + s.counts[NR_READY]) % len(s.queue)] = thread
    s.counts[NR_READY] += 1
    s.state[thread] = READY
    s.ready_ns[thread] = now_ns


@state_kernel
def occupy(s: Sched, cpu: int, activity: int, now_ns: int, quantum_ns: int) -> None:
    """A CPU has something to do from `now_ns` on; until then it was idle."""
    s.idle_ns[cpu] += max(0, now_ns - s.clock_ns[cpu])
    s.activity[cpu] = activity
    s.clock_ns[cpu] = max(s.clock_ns[cpu], now_ns)
    s.begun_ns[cpu] = s.clock_ns[cpu]
    s.slice_end_ns[cpu] = s.clock_ns[cpu] + quantum_ns


@state_kernel
def run_on(s: Sched, cpu: int, thread: int, now_ns: int, quantum_ns: int) -> None:
    """Let `cpu` run `thread` from `now_ns` on."""
    occupy(s, cpu, BUSY, now_ns, quantum_ns)
    s.thread[cpu] = thread
    s.state[thread] = RUNNING
    s.last_cpu[thread] = cpu


@state_kernel
def leave_cpu(s: Sched, cpu: int, quantum_ns: int) -> None:
    """The thread on `cpu` has stopped running: take the next of the queue, or go idle."""
    s.thread[cpu] = NOBODY
    s.activity[cpu] = IDLE
    at = next_queued(s, cpu, True)
    if at != NOBODY:
        run_on(s, cpu, take_queued(s, at, int(s.clock_ns[cpu])), s.clock_ns[cpu], quantum_ns)


@inlined
def node_of_cpu(s: Sched, cpu: int) -> int:
    """The node of a CPU, where CPUs have queues of their own."""
    return int(cpu * s.own_queues // len(s.activity))


@state_kernel
def next_queued(s: Sched, cpu: int, or_near: bool) -> int:
    """The place in the queue, from its head, of who is next on `cpu`, or (`or_near`) else on its node; or NOBODY."""
    near = NOBODY
    for i in range(s.counts[NR_READY]):
        if s.own_queues == 0:
            return i
        on = s.last_cpu[s.queue[(s.counts[READY_HEAD] + i) % len(s.queue)]]
        if on == cpu:
            return i
        if or_near and near == NOBODY and node_of_cpu(s, on) == node_of_cpu(s, cpu):
            near = i
    return near


@state_kernel
def take_queued(s: Sched, place: int, now_ns: int) -> int:
    """Remove and return the thread at a place of the queue; those before it move up."""
    head, size = int(s.counts[READY_HEAD]), len(s.queue)
    thread = int(s.queue[(head + place) % size])
    for i in range(place, 0, -1):
        s.queue[(head + i) % size] = s.queue[(head + i - 1) % size]
    s.counts[READY_HEAD] = (head + 1) % size
    s.counts[NR_READY] -= 1
    s.counts[QUEUED_NS] += max(0, now_ns - s.ready_ns[thread])
    return thread


@state_kernel
def preempt(s: Sched, cpu: int, quantum_ns: int) -> None:
    """The quantum is over and others wait: to the end of the queue."""
    queue_up(s, int(s.thread[cpu]), int(s.clock_ns[cpu]))
    leave_cpu(s, cpu, quantum_ns)


@state_kernel
def give_way(s: Sched, cpu: int, quantum_ns: int) -> bool:
    """A daemon is between two blocks: whether it has left its CPU to a queued thread, its slice being over."""
    if s.clock_ns[cpu] < s.slice_end_ns[cpu]:
        return False
    s.slice_end_ns[cpu] = s.clock_ns[cpu] + quantum_ns
    if next_queued(s, cpu, False) == NOBODY:
        return False
    stop_daemon(s, cpu, quantum_ns)
    return True


@state_kernel
def stop_daemon(s: Sched, cpu: int, quantum_ns: int) -> None:
    """The daemon on `cpu` stops running; a thread that was queued meanwhile was late because of it."""
    at = next_queued(s, cpu, True)
    if at != NOBODY:
        thread = s.queue[(s.counts[READY_HEAD] + at) % len(s.queue)]
        s.counts[LATENCY_NS] += max(0, s.clock_ns[cpu] - s.ready_ns[thread])
    leave_cpu(s, cpu, quantum_ns)


@state_kernel
def sleep_for_io(s: Sched, thread: int, at_ns: int) -> None:
    """The thread sleeps until its I/O is done: it counts for the load meanwhile."""
    s.in_io[thread] = True
    s.counts[NR_IN_IO] += 1
    add_timer(s, thread, at_ns)


@state_kernel
def add_timer(s: Sched, thread: int, at_ns: int) -> None:
    """The thread sleeps until `at_ns`."""
    s.state[thread] = SLEEPING
    i = s.counts[NR_TIMERS]
    s.counts[NR_TIMERS] += 1
    while i > 0 and s.timer_ns[(i - 1) >> 1] > at_ns:
        s.timer_ns[i] = s.timer_ns[(i - 1) >> 1]
        s.timer_thread[i] = s.timer_thread[(i - 1) >> 1]
        i = (i - 1) >> 1
    s.timer_ns[i] = at_ns
    s.timer_thread[i] = thread


@state_kernel
def pop_timer(s: Sched) -> int:
    """Remove and return the thread that wakes first."""
    thread = int(s.timer_thread[0])
    s.counts[NR_TIMERS] -= 1
    nr = s.counts[NR_TIMERS]
    at_ns = s.timer_ns[nr]
    last = int(s.timer_thread[nr])
    i = 0
    while 2 * i + 1 < nr:
        child = 2 * i + 1
        if child + 1 < nr and s.timer_ns[child + 1] < s.timer_ns[child]:
            child += 1
        if s.timer_ns[child] >= at_ns:
            break
        s.timer_ns[i] = s.timer_ns[child]
        s.timer_thread[i] = s.timer_thread[child]
        i = child
    s.timer_ns[i] = at_ns
    s.timer_thread[i] = last
    if s.in_io[thread]:
        s.in_io[thread] = False
        s.counts[NR_IN_IO] -= 1
    return thread


@state_kernel
def join(s: Sched, thread: int, other: int) -> bool:
    """Wait for the end of `other`; return whether there is anything to wait for."""
    if s.state[other] == DONE or other == thread:
        return False
    s.state[thread] = JOINING
    s.next_joiner[thread] = s.first_joiner[other]
    s.first_joiner[other] = thread
    return True


@state_kernel
def stop_joining(s: Sched, thread: int) -> None:
    """Take a thread off the list of those that the end of another would wake, if it is on one."""
    for other in range(len(s.state)):
        if s.first_joiner[other] == thread:
            s.first_joiner[other] = s.next_joiner[thread]
        i = int(s.first_joiner[other])
        while i != NOBODY:
            if s.next_joiner[i] == thread:
                s.next_joiner[i] = s.next_joiner[thread]
            i = int(s.next_joiner[i])


@state_kernel
def wait(s: Sched, thread: int) -> bool:
    """Wait to be woken; return whether the thread must, or was woken beforehand."""
    if s.wakes[thread] > 0:
        s.wakes[thread] -= 1
        return False
    s.state[thread] = WAITING
    return True


@state_kernel
def wake_waiting(s: Sched, thread: int, now_ns: int, quantum_ns: int) -> None:
    """End one wait of a thread, or its next one if it does not wait."""
    if s.state[thread] == WAITING:
        wake(s, thread, now_ns, quantum_ns)
    else:
        s.wakes[thread] += 1


@state_kernel
def end_thread(s: Sched, thread: int, now_ns: int, quantum_ns: int) -> None:
    """The thread is done: whoever waits for it may run."""
    s.state[thread] = DONE
    joiner = int(s.first_joiner[thread])
    while joiner != NOBODY:
        after = int(s.next_joiner[joiner])
        wake(s, joiner, now_ns, quantum_ns)
        joiner = after
