"""What FreeBSD does to an address space besides faults: map, unmap, fork, exit. Takes the place of simulate's own.

Removing pages holds the lock of a pv list over consecutive pages as long as their frames have the same one (it is
*sticky*), so contiguous memory takes it once for 2 MiB and scattered memory once for each page. An exit goes through
the chunks of its address space, in the order of their entries. A chunk that is empty then is freed at once, with the
lock held that the last page needed; in the batched form all are kept until the end, and freed together after it.

Then the object gives its pages back, as its writer, under the lock of each page (held over those of one frame, too).

| event | locks, in order |
|---|---|
| map | the map, exclusive; of a file: its object, and what vmpremap.py says |
| unmap | the map, exclusive; lists of pages; list of chunks; the object; pages |
| fork | the process tree; the parent's map, exclusive; for each page its list; list of chunks |
| exit, exec | the process tree (exit); lists of pages; list of chunks; the object; pages |

Follows FreeBSD vmspace_fork(), pmap_copy(), pmap_remove(), pmap_remove_pages(), vm_object_terminate() of
September 2019; where it does not: docs/deviations.md, "vmspace".
"""

from firsttouch._jit import inlined, state_kernel
from firsttouch.mm.buddy import NO_PFN, zone_of
from firsttouch.mm.fault import advance, credit, entry_of
from firsttouch.mm.parts import part
from firsttouch.mm.pmap import (
    NO_SLOT,
    NONE,
    SLOTS_FULL,
    STATE,
    clear_entry,
    find_slot,
    fork_tables,
    move_entry,
    need_slot,
    release_slot,
)
from firsttouch.mm.pv import (
    CHUNK_ENTRIES,
    NO_CHUNK,
    NO_ENTRY,
    NO_PLACE,
    add_entry,
    frame_of,
    free_chunk,
    move_pv,
    needs_chunk,
    remove_entry,
)
from firsttouch.mm.reservation import NOTHING
from firsttouch.mm.vmfault import (
    ask,
    drop,
    free_page,
    let_go,
    let_go_list,
    list_lock,
    new_chunk,
    page_lock,
    sticks,
)
from firsttouch.mm.vmlocks import CHUNK_LIST, MAP, OBJECT, PAGE, PROCTREE, RESERV, WRITE
from firsttouch.mm.vmpremap import map_step
from firsttouch.mm.vmsuper import SUPERPAGE, demote, mapped_frame
from firsttouch.mm.world import World
from firsttouch.units import PMD_ORDER, PMD_PAGES
from firsttouch.workload import EXIT, FORK, MOVE, POPULATE, UNMAP
from firsttouch.workload import MAP as MAP_EVENT

BEGIN = 1  # simulate.START: the event has not begun
(LOCKED, WALK, RUN, EMPTIED, FREE_EMPTIED, BATCH, FREE_BATCH, LOCK_OBJECT, PAGES, FREE_PAGES, PARTPOP, FINISH) = range(
    64, 76
)  # fmt: skip


@part
def event(w: World, cpu: int, t: int, e: int, limit_ns: int) -> int:
    """Do (or go on with) an event of an address space; whether it is done."""
    op = int(w.events.op[e])
    while True:
        if op == UNMAP:
            done = unmap_step(w, cpu, t, e)
        elif op == MAP_EVENT:
            done = map_step(w, cpu, t, e)
        elif op == FORK:
            done = fork_step(w, cpu, t, int(w.events.arg[e]))
        elif op == MOVE:
            done = move_pages(w, cpu, t, e)
        elif op == POPULATE:
            done = True  # there is no such call
        else:
            done = exit_step(w, cpu, t, op == EXIT)
        if done:
            return 1
        if w.sched.clock_ns[cpu] > limit_ns or w.vmlocks.granted[0] != 0 or w.pmap.counts[SLOTS_FULL] != 0:
            return 0


# -- pages and chunks that go


@inlined
def give_up(w: World, t: int, chunk: int) -> None:
    """Put an empty chunk on the thread's list."""
    w.pv.next[chunk] = w.vmobject.emptied[t]
    w.vmobject.emptied[t] = chunk
    w.vmobject.nr_emptied[t] += 1


@state_kernel
def free_emptied(w: World, cpu: int, t: int) -> None:
    """Free the chunks on the thread's list."""
    o = w.vmobject
    while o.emptied[t] != NO_CHUNK:
        chunk = int(o.emptied[t])
        o.emptied[t] = w.pv.next[chunk]
        free_chunk(w.pv, chunk)
        advance(w, cpu, w.cost.alloc)
    o.nr_emptied[t] = 0


@inlined
def removal_ns(w: World) -> int:
    """What removing one page takes under the lock of its list."""
    return int(w.cost.walk + w.cost.install)


@inlined
def clear_and_keep(w: World, t: int, mm: int, slot: int, entry: int) -> None:
    """Clear an entry; a page that nobody maps now is kept for `free_page_step`."""
    pfn = clear_entry(w.pmap, mm, slot, entry)
    if pfn != NO_PFN:
        w.buddy.next[pfn] = w.vmobject.freed[t]
        w.vmobject.freed[t] = pfn


@state_kernel
def remove_page(w: World, cpu: int, t: int, mm: int, slot: int, entry: int) -> int:
    """Unmap a page; the chunk that became empty, or NO_CHUNK."""
    chunk = remove_entry(w.pv, mm, entry)
    clear_and_keep(w, t, mm, slot, entry)
    advance(w, cpu, removal_ns(w))
    return chunk


@state_kernel
def remove_superpage(w: World, cpu: int, t: int, mm: int, slot: int) -> int:
    """The same for the pages of a superpage, which has one entry and one place on a list."""
    chunk = remove_entry(w.pv, mm, slot * PMD_PAGES)
    for entry in range((slot + 1) * PMD_PAGES - 1, slot * PMD_PAGES - 1, -1):
        clear_and_keep(w, t, mm, slot, entry)
    advance(w, cpu, removal_ns(w))
    return chunk


@state_kernel
def pages_step(w: World, cpu: int, t: int, mm: int) -> bool:
    """Free the pages that were removed, from LOCK_OBJECT on; whether all are freed, and the object let go of."""
    pr, o = w.progress, w.vmobject
    pfn = int(o.freed[t])
    if pr.stage[t] == LOCK_OBJECT:
        if pfn == NO_PFN:
            return True
        pr.stage[t] = PAGES
        ask(w, cpu, OBJECT, mm, WRITE)
    elif pr.stage[t] == PARTPOP:
        pr.stage[t] = PAGES if o.nr_in_run[t] == 0 else FREE_PAGES
        ask(w, cpu, RESERV, zone_of(w.buddy, o.frame[t] << PMD_ORDER), w.cost.zone_page)
    elif pr.stage[t] == PAGES:
        if pfn == NO_PFN:
            let_go(w, cpu, OBJECT, mm)
            return True
        nr, frame = 0, frame_of(pfn)
        while pfn != NO_PFN and frame_of(pfn) == frame:
            nr += 1
            pfn = int(w.buddy.next[pfn])
        o.nr_in_run[t] = nr
        pr.stage[t] = FREE_PAGES
        ask(w, cpu, PAGE, page_lock(w, frame), nr * w.cost.zone_page)
    else:
        o.freed[t] = w.buddy.next[pfn]
        advance(w, cpu, max(0, int(w.cost.unmap_share[0]) - removal_ns(w) - w.cost.zone_page))
        o.nr_in_run[t] -= 1
        if o.nr_in_run[t] == 0:
            pr.stage[t] = PAGES
        if free_page(w, cpu, pfn) != NOTHING:
            o.frame[t] = pfn >> PMD_ORDER
            pr.stage[t] = PARTPOP
    return False


# -- unmap


@state_kernel
def unmap_step(w: World, cpu: int, t: int, e: int) -> bool:
    """UNMAP: by address, region by region."""
    pr, o = w.progress, w.vmobject
    mm, stage = int(pr.mm[t]), int(pr.stage[t])
    if stage == BEGIN:
        pr.stage[t] = WALK
        ask(w, cpu, MAP, mm, WRITE)
    elif stage == WALK:
        page = next_mapped(w, mm, pr.step[t], w.events.end[e])
        pr.step[t] = page
        if page >= w.events.end[e]:
            let_go_list(w, cpu, t)
            pr.stage[t] = LOCK_OBJECT
            return False
        pr.stage[t] = RUN
        slot = find_slot(w.pmap, mm, page)
        if w.pmap.huge[slot] == SUPERPAGE and (page & (PMD_PAGES - 1) or w.events.end[e] - page < PMD_PAGES):
            nr_chunks = demote(w, mm, slot)
            advance(w, cpu, nr_chunks * w.cost.alloc)
            pr.stage[t] = WALK
            ask(w, cpu, CHUNK_LIST, 0, nr_chunks * w.cost.zone_page)
            return False
        sticks(w, cpu, t, mapped_frame(w, slot, entry_of(slot, page)))
    elif stage == RUN:
        unmap_run(w, cpu, t, mm, w.events.end[e])
        pr.stage[t] = WALK if o.nr_emptied[t] == 0 else EMPTIED
    elif stage == EMPTIED:
        pr.stage[t] = FREE_EMPTIED
        ask(w, cpu, CHUNK_LIST, 0, o.nr_emptied[t] * w.cost.zone_page)
    elif stage == FREE_EMPTIED:
        free_emptied(w, cpu, t)
        pr.stage[t] = WALK
    elif pages_step(w, cpu, t, mm):
        let_go(w, cpu, MAP, mm)
        return True
    return False


@state_kernel
def next_mapped(w: World, mm: int, page: int, end: int) -> int:
    """The first mapped page of [page, end), or `end`."""
    pm = w.pmap
    while page < end:
        slot = find_slot(pm, mm, page)
        if slot == NO_SLOT or pm.nr_mapped[slot] == 0:
            page = (page | (PMD_PAGES - 1)) + 1
        elif pm.state[entry_of(slot, page)] & STATE != NONE:
            return int(page)
        else:
            page += 1
    return int(end)


@state_kernel
def unmap_run(w: World, cpu: int, t: int, mm: int, end: int) -> None:
    """Remove consecutive pages of one region as long as the lock that is held guards their lists."""
    pm, pr = w.pmap, w.progress
    page = pr.step[t]
    slot = find_slot(pm, mm, page)
    last = min(end, (page | (PMD_PAGES - 1)) + 1)
    touched = pm.touched[mm]
    while page < last:
        entry = entry_of(slot, page)
        if pm.state[entry] & STATE != NONE:
            if list_lock(w, mapped_frame(w, slot, entry)) != w.vmobject.pv_lock[t]:
                break
            if pm.huge[slot] == SUPERPAGE:
                chunk = remove_superpage(w, cpu, t, mm, slot)
            else:
                chunk = remove_page(w, cpu, t, mm, slot, entry)
            if chunk != NO_CHUNK:
                give_up(w, t, chunk)
        page += 1
    pr.step[t] = page
    if w.rules.recorded:
        credit(w, t, (touched - pm.touched[mm]) * w.cost.unmap_page)


# -- exit


@state_kernel
def exit_step(w: World, cpu: int, t: int, leaves: bool) -> bool:
    """EXIT of the last thread, or EXEC: all chunks of the address space, then its pages, then its page tables."""
    pr, o, pv = w.progress, w.vmobject, w.pv
    mm, stage = int(pr.mm[t]), int(pr.stage[t])
    if stage == BEGIN:
        o.chunk[t], o.come_to[t] = pv.first[mm], 0
        pr.stage[t] = WALK
        if leaves:
            ask(w, cpu, PROCTREE, 0, w.cost.syscall)
    elif stage == WALK:
        walk_chunks(w, cpu, t, mm)
    elif stage == RUN:
        remove_run(w, cpu, t, mm)
        pr.stage[t] = WALK
    elif stage == FREE_EMPTIED:
        free_emptied(w, cpu, t)
        pr.stage[t] = WALK
    elif stage == BATCH:
        pr.stage[t] = LOCK_OBJECT if o.nr_emptied[t] == 0 else FREE_BATCH
        if o.nr_emptied[t]:
            ask(w, cpu, CHUNK_LIST, 0, o.nr_emptied[t] * w.cost.zone_page)
    elif stage == FREE_BATCH:
        free_emptied(w, cpu, t)
        pr.stage[t] = LOCK_OBJECT
    elif pages_step(w, cpu, t, mm):
        for region in range(w.pmap.nr_regions[mm]):
            if w.pmap.slot[w.pmap.table[mm] + region] != NO_SLOT:
                release_slot(w.pmap, mm, region)
        return True
    return False


@state_kernel
def walk_chunks(w: World, cpu: int, t: int, mm: int) -> None:
    """Come to the next entry and the lock of its list, to the end of a chunk, or to the end of all."""
    pr, o, pv = w.progress, w.vmobject, w.pv
    chunk = int(o.chunk[t])
    if chunk == NO_CHUNK:
        let_go_list(w, cpu, t)
        pr.stage[t] = BATCH
        return
    place = next_used(w, chunk, int(o.come_to[t]))
    if place == NO_PLACE:
        o.chunk[t], o.come_to[t] = pv.first[mm], 0
        if not pv.batch:
            pr.stage[t] = FREE_EMPTIED
            ask(w, cpu, CHUNK_LIST, 0, w.cost.zone_page)
        return
    o.come_to[t] = place - chunk * CHUNK_ENTRIES
    pr.stage[t] = RUN
    sticks(w, cpu, t, int(pv.frame[place]))


@inlined
def next_used(w: World, chunk: int, index: int) -> int:
    """The first place of a chunk that has an entry, from `index` on, or NO_PLACE."""
    for place in range(chunk * CHUNK_ENTRIES + index, (chunk + 1) * CHUNK_ENTRIES):
        if w.pv.entry[place] != NO_ENTRY:
            return place
    return NO_PLACE


@state_kernel
def remove_run(w: World, cpu: int, t: int, mm: int) -> None:
    """Remove the pages of the chunk's entries as long as the lock that is held guards their lists."""
    o, pv = w.vmobject, w.pv
    chunk = int(o.chunk[t])
    for place in range(chunk * CHUNK_ENTRIES + o.come_to[t], (chunk + 1) * CHUNK_ENTRIES):
        entry = int(pv.entry[place])
        if entry == NO_ENTRY:
            continue
        if list_lock(w, int(pv.frame[place])) != o.pv_lock[t]:
            o.come_to[t] = place - chunk * CHUNK_ENTRIES
            return
        slot = entry // PMD_PAGES
        if w.pmap.huge[slot] == SUPERPAGE:
            emptied = remove_superpage(w, cpu, t, mm, slot)
        else:
            emptied = remove_page(w, cpu, t, mm, slot, entry)
        if emptied != NO_CHUNK:
            give_up(w, t, chunk)
    o.come_to[t] = CHUNK_ENTRIES


# -- fork, move


@state_kernel
def fork_step(w: World, cpu: int, t: int, child: int) -> bool:
    """FORK: the child's page tables are copied, and each of its pages gets a pv entry."""
    pr, pm, pv = w.progress, w.pmap, w.pv
    parent_mm, mm = int(pr.mm[t]), int(w.threads.mm[child])
    stage = int(pr.stage[t])
    if stage == BEGIN:
        if mm == parent_mm or w.mm_users[mm] > 0:
            return True
        pr.stage[t] = LOCKED
        ask(w, cpu, PROCTREE, 0, w.cost.syscall)
    elif stage == LOCKED:
        pr.stage[t] = FINISH
        ask(w, cpu, MAP, parent_mm, WRITE)
    elif stage == FINISH:
        fork_tables(pm, parent_mm, mm)
        w.vmobject.behind[mm] = parent_mm
        pr.step[t] = 0
        pr.stage[t] = WALK
    elif stage == WALK:
        end = pm.nr_regions[mm] << PMD_ORDER
        page = next_mapped(w, mm, pr.step[t], end)
        pr.step[t] = page
        if page >= end:
            let_go_list(w, cpu, t)
            let_go(w, cpu, MAP, parent_mm)
            return True
        if needs_chunk(pv, mm):
            advance(w, cpu, w.cost.alloc)
            pr.stage[t] = FREE_EMPTIED
            ask(w, cpu, CHUNK_LIST, 0, w.cost.zone_page)
            return False
        pr.stage[t] = RUN
        sticks(w, cpu, t, parents_frame(w, parent_mm, page))
    elif stage == RUN:
        copy_run(w, cpu, t, parent_mm, mm)
        pr.stage[t] = WALK
    else:
        new_chunk(w, mm)
        pr.stage[t] = WALK
    return False


@inlined
def parents_frame(w: World, parent_mm: int, page: int) -> int:
    """The frame of a page that a parent maps, or frame 0 if it has lost it meanwhile (see `drop`)."""
    slot = find_slot(w.pmap, parent_mm, page)
    first = w.pmap.huge[slot] == SUPERPAGE
    place = w.pv.place_of[slot * PMD_PAGES if first else entry_of(slot, page)]
    return 0 if place == NO_PLACE else int(w.pv.frame[place])


@state_kernel
def copy_run(w: World, cpu: int, t: int, parent_mm: int, mm: int) -> None:
    """pv entries for consecutive pages of a child as long as its chunk has room and the lock guards their lists."""
    pr, pm, pv = w.progress, w.pmap, w.pv
    page = pr.step[t]
    last = (page | (PMD_PAGES - 1)) + 1
    slot = find_slot(pm, mm, page)
    ns = 0
    while page < last:
        entry = entry_of(slot, page)
        if pm.state[entry] & STATE != NONE:
            frame = parents_frame(w, parent_mm, page)
            if needs_chunk(pv, mm) or list_lock(w, frame) != w.vmobject.pv_lock[t]:
                break
            add_entry(pv, mm, entry, frame)
            ns += w.cost.install
            if pm.huge[slot] == SUPERPAGE:
                page = last - 1
        page += 1
    advance(w, cpu, ns)
    if w.rules.recorded:
        credit(w, t, ns)
    pr.step[t] = page


@state_kernel
def move_pages(w: World, cpu: int, t: int, e: int) -> bool:
    """MOVE (there is no mremap): what is mapped goes to the new place, at no cost."""
    pm, pr = w.pmap, w.progress
    mm, end = int(pr.mm[t]), int(w.events.end[e])
    page = next_mapped(w, mm, pr.step[t], end)
    while page < end:
        source = find_slot(pm, mm, page)
        to = w.events.arg[e] + page - w.events.page[e]
        target = need_slot(pm, mm, to)
        if target == NO_SLOT:
            return True
        other = entry_of(target, to)
        if pm.state[other] & STATE != NONE:
            drop(w, cpu, mm, target, other)
        demote(w, mm, source)
        demote(w, mm, target)
        move_entry(pm, source, entry_of(source, page), target, other)
        move_pv(w.pv, entry_of(source, page), other)
        page = next_mapped(w, mm, page + 1, end)
    return True
