"""VM objects: whose lock a fault takes, and how far each thread is in its current fault, unmap, fork or exit.

An address space's anonymous memory is one object, number `mm`. A file is an object that all who map it share: mappings
of parts of the page cache that overlap are of one file, and one whose part is not known is a file by itself. What a
private mapping of a file has not copied yet, and what a child of fork has not copied from its parent, is in the object
behind the first one.

Follows FreeBSD vm_object.c as far as its locks go; where it does not: docs/deviations.md, "vmobject".
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsttouch._jit import inlined
from firsttouch.machine import Machine
from firsttouch.mm.buddy import NO_PFN
from firsttouch.mm.pv import CLUSTER_PAGES, NO_CHUNK, Files, Pv, make_pv
from firsttouch.mm.vmlocks import NR_CLASSES, PV_LIST, VmLocks, make_vmlocks
from firsttouch.policy import Policy
from firsttouch.units import PMD_PAGES
from firsttouch.workload import ANON, NO_CACHE_PAGE, SHARED, SHMEM, WRITABLE, Vmas, Workload

RWLOCK_BYTES = 32
NR_PAGE_LOCKS = 256  # PA_LOCK_COUNT of amd64, each with a line to itself
NO_OBJECT = NO_LOCK = np.iinfo(np.int32).min


class VmObject(NamedTuple):
    """Objects by number, and the progress of threads. Empty for kernels without."""

    nr_mms: int
    file: NDArray[np.int32]  # [vma] its file's object, number nr_mms or above
    behind: NDArray[np.int32]  # [mm] object behind that of the address space, or NO_OBJECT
    first: NDArray[np.int32]  # [thread] object that the fault looks in first
    second: NDArray[np.int32]  # [thread] object behind it that the page is in, or NO_OBJECT
    fast: NDArray[np.bool_]  # [thread] the fault found its page as a reader of the first object
    frame: NDArray[np.int32]  # [thread] superpage frame of the fault's page
    pv_lock: NDArray[np.int32]  # [thread] lock of pv lists that it holds over many pages, or NO_LOCK
    chunk: NDArray[np.int32]  # [thread] chunk that an exit has come to
    come_to: NDArray[np.int32]  # [thread] how far in that
    emptied: NDArray[np.int32]  # [thread] chunks to give up, linked by pv.next, or NO_CHUNK
    nr_emptied: NDArray[np.int32]  # [thread]
    freed: NDArray[np.int32]  # [thread] pages to free, linked by buddy.next, or NO_PFN
    nr_in_run: NDArray[np.int32]  # [thread] of those, how many share the page lock that was taken last


def make_vmobject(nr_mms: int, nr_threads: int, files: NDArray[np.int64]) -> VmObject:
    """No thread does anything. `files`: which file each mapping is of."""
    return VmObject(
        nr_mms=nr_mms,
        file=(nr_mms + files).astype(np.int32),
        behind=np.full(nr_mms, NO_OBJECT, np.int32),
        first=np.zeros(nr_threads, np.int32),
        second=np.full(nr_threads, NO_OBJECT, np.int32),
        fast=np.zeros(nr_threads, np.bool_),
        frame=np.zeros(nr_threads, np.int32),
        pv_lock=np.full(nr_threads, NO_LOCK, np.int32),
        chunk=np.full(nr_threads, NO_CHUNK, np.int32),
        come_to=np.zeros(nr_threads, np.int32),
        emptied=np.full(nr_threads, NO_CHUNK, np.int32),
        nr_emptied=np.zeros(nr_threads, np.int32),
        freed=np.full(nr_threads, NO_PFN, np.int32),
        nr_in_run=np.zeros(nr_threads, np.int32),
    )


@inlined
def is_file_first(flags: int) -> bool:
    """Whether a fault in a mapping looks in the file's object first: all but those that may hold private copies."""
    return bool(flags & ANON == 0 and (flags & (SHARED | SHMEM) or flags & WRITABLE == 0))


def place_files(vmas: Vmas, nr_pages: int) -> tuple[Files, NDArray[np.int64], int]:
    """Where mapped files are cached, behind `nr_pages` of memory, from a frame on.

    Files of at least a superpage lie each in one piece, as reservations keep them. Smaller ones have none: their
    clusters lie as they were read, those of different files by turns, when many programs began at a time.

    Returns that, [vma] the number of its file, and the end of it all.
    """
    size = np.where(vmas.flags & ANON, 0, np.maximum(0, vmas.end - vmas.start))
    known = (vmas.cache_page != NO_CACHE_PAGE) & (size > 0)
    end = int((vmas.cache_page + size)[known].max(initial=0))
    alone = np.where(known, 0, size)
    page = np.where(known, vmas.cache_page, end + np.cumsum(alone) - alone)  # in a row of all files
    file = np.zeros(len(size), np.int64)
    spans: list[list[int]] = []  # [file] first page, end, whether its clusters are strewn
    for v in np.argsort(page, kind="stable"):
        if not spans or page[v] >= spans[-1][1] or not known[v]:
            spans.append([int(page[v]), int(page[v]), int(known[v])])
        file[v] = len(spans) - 1
        spans[-1][1] = max(spans[-1][1], int(page[v] + size[v]))
    span = np.array(spans, np.int64).reshape(-1, 3)
    nr = -(-(span[:, 1] - span[:, 0]) // CLUSTER_PAGES)  # [file] clusters
    of = np.repeat(np.arange(len(span)), nr)  # [cluster] file
    nth = np.arange(len(of)) - np.repeat(np.cumsum(nr) - nr, nr)
    is_small = (span[of, 2] == 1) & (span[of, 1] - span[of, 0] < PMD_PAGES)
    order = np.lexsort((of, np.where(is_small, nth, 0), is_small))  # files in one piece, then the others by turns
    place = np.empty(len(of), np.int64)
    place[order] = np.arange(len(of))
    first_frame = -(-nr_pages // PMD_PAGES)
    frame = (first_frame + place // (PMD_PAGES // CLUSTER_PAGES)).astype(np.int32)
    files = Files(first=(np.cumsum(nr) - nr)[file], skipped=page - span[file, 0], frame=frame)
    return files, file, (first_frame + -(-len(of) * CLUSTER_PAGES // PMD_PAGES)) * PMD_PAGES


def make_freebsd(
    workload: Workload, machine: Machine, policy: Policy, nr_slots: int, nr_pages: int
) -> tuple[VmLocks, VmObject, Pv]:
    """Locks, objects and pv entries of FreeBSD 13; empty ones for another kernel."""
    cost = machine.cost
    costs = round(cost.lock_handoff.ns), round(cost.lock_waiter.ns), machine.nr_nodes, round(cost.remote_handoff.ns)
    if policy.kernel != "freebsd-13":
        none = np.zeros(0, np.int64)
        nothing = make_pv(0, 0, Files(none, none, np.zeros(0, np.int32)), 0, 1, False)
        return make_vmlocks([0] * NR_CLASSES, [1] * NR_CLASSES, 0, *costs), make_vmobject(0, 0, none), nothing
    nr_mms, nr_threads = len(workload.mm_regions), len(workload.threads.first)
    nr_pv_locks = {"one": 1, "hashed": policy.locks.pv_hash_locks, "superpage": 0}[policy.locks.pv_lists]
    places, files, nr_pages = place_files(workload.vmas, nr_pages)
    pv = make_pv(nr_mms, nr_slots, places, nr_pages, nr_pv_locks, policy.locks.pv_batch)
    nr_objects = nr_mms + 1 + int(files.max(initial=0))
    nr_locks = [pv.nr_locks, nr_objects, nr_mms, NR_PAGE_LOCKS, machine.nr_nodes, 1, 1]
    per_line = [1] * NR_CLASSES
    if policy.locks.pv_lists != "superpage":  # that has a structure of a line for each frame
        per_line[PV_LIST] = max(1, machine.line_bytes // RWLOCK_BYTES)
    vmlocks = make_vmlocks(nr_locks, per_line, machine.nr_cpus, *costs)
    return vmlocks, make_vmobject(nr_mms, nr_threads, files), pv
