"""MAP in FreeBSD 13: a file's cached pages are mapped when the mapping is made, before anything touches them.

mmap maps the first MAX_INIT_PAGES at most; exec, which maps a program's own file (IMAGE), all that is cached. For that
the map is held exclusively, and the file's object shared. Pages come in order, so the lock of their pv lists sticks: a
frame of a file takes it once. Where the mapping covers a whole region, and reservations are on, that becomes one
superpage, which counts as one page against the limit.

  BEGIN    ask for the map, exclusive
  LOCKED   an entry of the map; of a file: ask for its object, to have it referenced
  REFER    ask for the object, to read
  WALK     the next page that is not mapped: a chunk if all are full, the lock of its list if that is not held
  CHUNK    the chunk is on the list
  RUN      map consecutive pages under that lock

Follows FreeBSD vm_map_insert(), vm_map_pmap_enter(), pmap_enter_object() and exec's use of MAP_PREFAULT; where it does
not: docs/deviations.md, "vmpremap".
"""

from firsttouch._jit import inlined, state_kernel
from firsttouch.mm.fault import advance, credit, entry_of
from firsttouch.mm.pmap import FILE_RO, NO_SLOT, NONE, STATE, map_pfnless, need_slot
from firsttouch.mm.pv import add_entry, needs_chunk
from firsttouch.mm.vmfault import ask, file_frame, let_go, let_go_list, list_lock, map_superpage, new_chunk, sticks
from firsttouch.mm.vmlocks import CHUNK_LIST, MAP, OBJECT, READ, WRITE
from firsttouch.mm.world import World
from firsttouch.units import PMD_PAGES
from firsttouch.workload import ANON, IMAGE, SHMEM

MAX_INIT_PAGES = 96
BEGIN = 1  # simulate.START: the event has not begun
LOCKED, REFER, WALK, CHUNK, RUN = range(80, 85)


@state_kernel
def map_step(w: World, cpu: int, t: int, e: int) -> bool:
    """One stage of MAP; whether it is done."""
    pr = w.progress
    stage, vma, mm = int(pr.stage[t]), int(w.events.vma[e]), int(pr.mm[t])
    if stage == BEGIN:
        if w.rules.recorded:
            credit(w, t, w.cost.syscall)
        pr.stage[t] = LOCKED
        ask(w, cpu, MAP, mm, WRITE)
    elif stage == LOCKED:
        advance(w, cpu, w.cost.syscall)
        if w.vmas.flags[vma] & ANON:
            let_go(w, cpu, MAP, mm)
            return True
        pr.stage[t] = REFER
        ask(w, cpu, OBJECT, int(w.vmobject.file[vma]), w.cost.zone_page)
    elif stage == REFER:
        pr.mapped[t] = 0
        pr.stage[t] = WALK
        ask(w, cpu, OBJECT, int(w.vmobject.file[vma]), READ)
    elif stage == WALK:
        if not walk(w, cpu, t, e, mm, vma):
            let_go_list(w, cpu, t)
            let_go(w, cpu, OBJECT, int(w.vmobject.file[vma]))
            let_go(w, cpu, MAP, mm)
            return True
    elif stage == CHUNK:
        if needs_chunk(w.pv, mm):
            new_chunk(w, mm)
        pr.stage[t] = WALK
    else:
        run(w, cpu, t, e, mm, vma)
        pr.stage[t] = WALK
    return False


@inlined
def end_of(w: World, t: int, e: int) -> int:
    """The page at which premapping ends; superpages mapped so far (progress.mapped) count as one page each."""
    vma = int(w.events.vma[e])
    if w.vmas.flags[vma] & SHMEM:
        return int(w.events.page[e])
    if w.vmas.flags[vma] & IMAGE:
        return int(w.events.end[e])
    limit = MAX_INIT_PAGES + w.progress.mapped[t] * (PMD_PAGES - 1)
    return int(min(w.events.end[e], w.events.page[e] + limit))


@state_kernel
def walk(w: World, cpu: int, t: int, e: int, mm: int, vma: int) -> bool:
    """Come to the next page that is not mapped, and ask for what mapping it needs; false if there is none."""
    pr, pm = w.progress, w.pmap
    end = end_of(w, t, e)
    while pr.step[t] < end:
        slot = need_slot(pm, mm, pr.step[t])
        if slot == NO_SLOT:
            return False
        if pm.state[entry_of(slot, pr.step[t])] & STATE == NONE:
            break
        pr.step[t] += 1
    if pr.step[t] >= end:
        return False
    if needs_chunk(w.pv, mm):
        advance(w, cpu, w.cost.alloc)
        pr.stage[t] = CHUNK
        ask(w, cpu, CHUNK_LIST, 0, w.cost.zone_page)
        return True
    pr.stage[t] = RUN
    sticks(w, cpu, t, file_frame(w, vma, pr.step[t]))
    return True


@state_kernel
def run(w: World, cpu: int, t: int, e: int, mm: int, vma: int) -> None:
    """Map consecutive pages of a region while the address space's chunk has room and the lock guards their lists."""
    pr, pm = w.progress, w.pmap
    page, end = int(pr.step[t]), end_of(w, t, e)
    head = page & ~(PMD_PAGES - 1)
    slot = need_slot(pm, mm, page)
    if w.reservation.on and page == head and head + PMD_PAGES <= w.events.end[e] and pm.nr_mapped[slot] == 0:
        map_superpage(w, mm, vma, slot, head)
        advance(w, cpu, w.cost.map_page)
        pr.mapped[t] += 1
        pr.step[t] = head + PMD_PAGES
        return
    ns = 0
    last = min(end, head + PMD_PAGES)
    while page < last:
        entry = entry_of(slot, page)
        if pm.state[entry] & STATE == NONE:
            frame = file_frame(w, vma, page)
            if needs_chunk(w.pv, mm) or list_lock(w, frame) != w.vmobject.pv_lock[t]:
                break
            map_pfnless(pm, slot, entry, FILE_RO)
            add_entry(w.pv, mm, entry, frame)
            ns += w.cost.map_page
        page += 1
    advance(w, cpu, ns)
    pr.step[t] = page
