"""Resident neighbours: pages beside the faulting one that a BSD maps with it, because they are in memory anyway.

A window is so many pages behind and ahead of the faulting page, by the advice given for the mapping; it is clipped to
the mapping, and not aligned. Nothing is read or zeroed for it, but for one exception.

  NetBSD      3 behind and 4 ahead; none for random access; 7 ahead for sequential access, whose 8 behind are only put
              out of use. Each page of the window is looked at. A page of the file behind the mapping is mapped
              read-only; a page of the process's own that is in memory and not mapped (after a fork: the child begins
              with no mappings) is mapped, read-only if others share it. If the faulting page is the process's own, the
              file is not looked at.
              `fills_shared`, up to NetBSD 9: in shared memory every page of the window that was never touched is
              allocated and zeroed.
  FreeBSD     4 each way, nearest first, behind before ahead, in page tables that exist. The first page that is not
              mapped and not in memory ends the scan in both directions. FreeBSD 6 and 9 do this after any fault that
              did not zero-fill; later ones only after one that copied nothing.

**What a mapped neighbour costs besides its entry**, on machines that say so. Where the instruction cache is not
coherent, NetBSD's pmap writes each page of code back and invalidates it, line by line, whenever it maps it
(`sync_page`; a file that cannot be written to through the mapping is taken for code), the faulting page as its
neighbours. And where the TLB is loaded by software the pmap loads each entry it makes: one that the program was using
has to go for a neighbour (`tlb_reload`, the user's time).

**Scaling.** NetBSD's windows are pages whatever a page is. Scaled, they are as many bytes as with 4 KiB pages: each
number times 4096 / page size, rounded as `scaling` says; for pages of 4 KiB and less nothing changes.

Files are cached in the model, so a page of a file is in memory. As with fault-around, pages that the recording kernel
would have mapped around as well are marked NEAR.

Invariants:
  N1  a neighbour that is mapped was not, and lies in the mapping of the faulting page
  N2  without `fills_shared` mapping neighbours allocates nothing but page tables

Follows NetBSD uvm_fault() of 2015 to 2020 and its uvmadvice[], and FreeBSD vm_fault_prefault(); where it does not:
docs/deviations.md, "neighbours".
"""

from firsttouch._jit import inlined, state_kernel
from firsttouch.mm.fault import advance, entry_of, map_resident
from firsttouch.mm.faultahead import ADVICE_NORMAL, ADVICE_RANDOM, ADVICE_SEQUENTIAL, around_window
from firsttouch.mm.parts import part
from firsttouch.mm.pmap import (
    ANON_RO,
    ANON_RW,
    FILE_RO,
    NEAR,
    NO_SLOT,
    NONE,
    RESIDENT,
    SHMEM,
    STATE,
    copy_entry,
    find_slot,
    map_pfnless,
    need_slot,
)
from firsttouch.mm.world import COLD_NS, COW, FILE, REUSE, SHARED_FILL, SOFT, ZEROED_BYTES, World
from firsttouch.units import PMD_ORDER, PMD_PAGES
from firsttouch.workload import ANON, RANDOM, SEQUENTIAL, WRITABLE
from firsttouch.workload import SHMEM as SHMEM_VMA


@inlined
def advice_of(flags: int) -> int:
    """The row of the window table for a mapping."""
    if flags & RANDOM:
        return ADVICE_RANDOM
    return ADVICE_SEQUENTIAL if flags & SEQUENTIAL else ADVICE_NORMAL


@part
def netbsd_neighbours(w: World, cpu: int, t: int, slot: int, service: int) -> int:
    """Map the neighbours of a fault that is about to return, as NetBSD does; return how many."""
    e = w.sched.next_event[t]
    vma, mm, page = int(w.events.vma[e]), int(w.progress.mm[t]), int(w.progress.step[t])
    flags = int(w.vmas.flags[vma])
    advice = advice_of(flags)
    start = max(int(w.vmas.start[vma]), page - int(w.around.behind[advice]))
    end = min(int(w.vmas.end[vma]), page + int(w.around.ahead[advice]) + 1)
    has_file = flags & (ANON | SHMEM_VMA) == 0 and service in (FILE, COW)
    nr = 0
    for other in range(start, end):
        if other == page:
            if service == FILE and flags & WRITABLE == 0:
                advance(w, cpu, w.cost.sync_page)
            continue
        there = find_slot(w.pmap, mm, other)
        state = NONE if there == NO_SLOT else int(w.pmap.state[entry_of(there, other)]) & STATE
        if state == RESIDENT:
            map_resident(w.pmap, there, entry_of(there, other))
        elif state == NONE and has_file:
            if not map_cached(w, mm, vma, page, other):
                return nr
            if flags & WRITABLE == 0:
                advance(w, cpu, w.cost.sync_page)
        elif state == NONE and flags & SHMEM_VMA and w.around.fills_shared and service == SHARED_FILL:
            if not fill_shared(w, cpu, mm, other):
                return nr
        else:
            continue
        advance(w, cpu, w.cost.map_page)
        w.sched.clock_ns[cpu] += w.cost.tlb_reload
        w.total[COLD_NS] += w.cost.tlb_reload
        nr += 1
    return nr


@part
def freebsd_neighbours(w: World, cpu: int, t: int, slot: int, service: int) -> int:
    """The same as FreeBSD does."""
    if service not in (FILE, REUSE, SOFT) and not (service == COW and w.around.after_copies):
        return 0
    e = w.sched.next_event[t]
    vma, mm, page = int(w.events.vma[e]), int(w.progress.mm[t]), int(w.progress.step[t])
    advice = advice_of(int(w.vmas.flags[vma]))
    behind, ahead = int(w.around.behind[advice]), int(w.around.ahead[advice])
    nr = 0
    for i in range(2 * max(behind, ahead)):
        distance = i // 2 + 1
        other = page + distance if i & 1 else page - distance
        if distance > (ahead if i & 1 else behind) or not w.vmas.start[vma] <= other < w.vmas.end[vma]:
            continue
        there = find_slot(w.pmap, mm, other)
        if there == NO_SLOT:
            continue
        state = int(w.pmap.state[entry_of(there, other)]) & STATE
        if state == RESIDENT:
            map_resident(w.pmap, there, entry_of(there, other))
        elif state != NONE:
            continue
        elif w.vmas.flags[vma] & (ANON | SHMEM_VMA):
            break  # never touched, so not in memory
        else:
            map_cached(w, mm, vma, page, other)
        advance(w, cpu, w.cost.map_page)
        nr += 1
    return nr


@state_kernel
def map_cached(w: World, mm: int, vma: int, page: int, other: int) -> bool:
    """Map a page of the file near `page`; False if there is no room for its page table."""
    slot = need_slot(w.pmap, mm, other)
    if slot == NO_SLOT:
        return False
    first, last = around_window(w.vmas.start[vma], w.vmas.end[vma], page, w.rules.recorded_window_pages)
    near = NEAR if first <= other < last else 0
    map_pfnless(w.pmap, slot, entry_of(slot, other), FILE_RO | near)
    return True


@state_kernel
def fill_shared(w: World, cpu: int, mm: int, other: int) -> bool:
    """Allocate, zero and map a page of shared memory that nobody touched; False if there is no room for its table."""
    slot = need_slot(w.pmap, mm, other)
    if slot == NO_SLOT:
        return False
    advance(w, cpu, w.cost.alloc + w.cost.zone_page + w.cost.zero[0])
    w.total[ZEROED_BYTES] += w.rules.page_bytes
    map_pfnless(w.pmap, slot, entry_of(slot, other), SHMEM)
    return True


@part
def fork_without_tables(w: World, parent: int, child: int, _b: int, _c: int) -> int:
    """Fork as NetBSD does: what the parent has is the child's too, but nothing is mapped there. Files: nothing is."""
    pm = w.pmap
    for region in range(min(pm.nr_regions[parent], pm.nr_regions[child])):
        source = int(pm.slot[pm.table[parent] + region])
        if source == NO_SLOT or pm.nr_mapped[source] == 0:
            continue
        target = need_slot(pm, child, region << PMD_ORDER)
        if target == NO_SLOT:
            return 0
        for i in range(PMD_PAGES):
            share_entry(w, child, source * PMD_PAGES + i, target, i)
    return 0


@state_kernel
def share_entry(w: World, child: int, source: int, target: int, i: int) -> None:
    """Share one entry with a child, which will find it at its first touch."""
    pm = w.pmap
    mapped = int(pm.state[source]) & STATE
    if mapped in (ANON_RO, ANON_RW, SHMEM, RESIDENT):
        entry = target * PMD_PAGES + i
        copy_entry(pm, child, source, entry)
        pm.state[entry] = int(pm.state[entry]) & ~STATE | RESIDENT
        pm.nr_mapped[target] += 1
