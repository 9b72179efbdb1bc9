"""Where a thread starts that another has just begun: on any idle CPU, or as kernels of 2004 place it.

`idle`: as any thread that becomes ready. `pack`: the threads of one parent fill its node, then the next. `spread`: they
go to the nodes in turn. Under both the first has the parent's own CPU, and queues until the parent waits. `balance`:
all queue on the parent's CPU, and idle CPUs pull them, see balance.py.

It decides who shares a bus, and whose memory is near. The posts that the page-fault tables are from do not say which it
was; that CPU time rises by half at the second thread, or hardly at all, does.
"""

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import state_kernel
from firsttouch.mm.sched import DONE, IDLE, NEW, Sched, queue_up, run_on, wake

PLACEMENTS = ("idle", "pack", "spread", "balance")
BY_IDLE, BY_PACK, BY_SPREAD, BY_BALANCE = range(4)


@state_kernel
def nr_alive(s: Sched, parents: NDArray[np.int32], parent: int) -> int:
    """The threads that `parent` has begun and that have not ended."""
    nr = 0
    for t in range(parent + 1, len(parents)):
        if parents[t] == parent and s.state[t] not in (NEW, DONE):
            nr += 1
    return nr


@state_kernel
def place_of(placement: int, nth: int, parent_cpu: int, nr_cpus: int, nr_nodes: int) -> int:
    """The CPU for the `nth` of the threads that a parent has alive, counted from 0."""
    per_node = nr_cpus // nr_nodes
    if placement == BY_PACK or per_node == 0:
        return (parent_cpu + nth) % nr_cpus
    node = (parent_cpu // per_node + nth) % nr_nodes
    return (node * per_node + (parent_cpu + nth // nr_nodes) % per_node) % nr_cpus


@state_kernel
def start(s: Sched, thread: int, placement: int, cpu: int, is_own: bool, now_ns: int, quantum_ns: int) -> None:
    """A new thread may run: on `cpu`, chosen for it (`is_own`: its parent's), or as others do if that is busy."""
    if placement == BY_IDLE:
        wake(s, thread, now_ns, quantum_ns)
    elif placement == BY_BALANCE:
        s.last_cpu[thread] = cpu
        queue_up(s, thread, now_ns)
    elif s.activity[cpu] == IDLE:
        run_on(s, cpu, thread, max(now_ns, s.clock_ns[cpu]), quantum_ns)
    elif is_own:
        queue_up(s, thread, now_ns)
    else:
        wake(s, thread, now_ns, quantum_ns)
