"""One page fault of FreeBSD 13, lock by lock: what takes the place of fault.py under such a kernel.

A fault takes the map of its address space shared, and keeps it. Then it looks into the first object, as a reader: if
the page is there (a file's, mostly) it is entered at once, with cached neighbours, and that was all (the *fast* way).
Else it becomes the object's writer and makes a page: zeroed there, or copied from the object behind. The page gets a pv
entry, on the list that the lock of its superpage frame guards, and goes to the queue of active pages under the lock of
that.

  LOCK_MAP     trap; ask for the map
  LOCK_FIRST   ask for the first object, to read
  LOOK_FIRST   look; if the page must be made, become the writer, or let go and ask to be
  LOOK_AGAIN   the writer: what the fault needs
  ALLOC        a page: of the region's reservation, if the policy has such
  PARTPOP      the reservation's place in the queue has changed: ask for the lock of that
  FILL         zero it
  LOCK_SECOND  ask for the object behind, then let go of the first
  LOOK_SECOND  look; let go of it if the page is to be copied
  COPY         copy
  UNLOCK       nothing of an object is held any more
  CHUNK        break up a superpage that is in the way; if the address space's chunks are full, make one, and ask for
               the list of chunks
  NEW_CHUNK    it is on the list
  OLD_LIST     the page that the copy replaces leaves its list: ask for that one's lock
  LIST         ask for the lock of the page's list
  ENTER        the page is on its list and in the page table; perhaps its region becomes a superpage
  PROMOTED     it has: give up chunks
  AHEAD        of a file's page: the next cached neighbour, until there is none any more
  AHEAD_CHUNK  as NEW_CHUNK
  AHEAD_ENTER  as ENTER
  LOCK_QUEUE   not the fast way: the writer of the first object again
  QUEUE        ask for the lock of the page
  END          let go of everything

Neighbours are those up to four pages before and behind, in the order -1, +1, -2, +2, that are in the mapping and in
page tables that exist, and not mapped yet (neighbours.py has the windows).

Follows FreeBSD vm_fault_hold(), vm_fault_soft_fast(), vm_fault_prefault(), amd64 pmap_enter(), pmap_enter_quick(), of
September 2019; where it does not: docs/deviations.md, "vmfault".
"""

from firsttouch._jit import inlined, state_kernel
from firsttouch.mm.buddy import NO_PFN, UNZEROED, zone_of
from firsttouch.mm.fault import (
    advance,
    coldness,
    count_fault,
    credit,
    entry_of,
    free_folio,
    install_reuse,
    is_better_mapped,
    is_last_user,
    on_bus,
    recorded_cost,
    serve,
    service_of_mapped,
    service_of_none,
    take_block,
    zero_block,
)
from firsttouch.mm.faultahead import around_window
from firsttouch.mm.locks import ZONE, acquire
from firsttouch.mm.neighbours import advice_of
from firsttouch.mm.parts import part
from firsttouch.mm.pmap import (
    ANON_RO,
    ANON_RW,
    FILE_RO,
    FILE_RW,
    FRESH,
    NEAR,
    NO_SLOT,
    NONE,
    SHMEM,
    SLOTS_FULL,
    STATE,
    WRITTEN,
    clear_entry,
    find_slot,
    map_block,
    map_pfnless,
    need_slot,
)
from firsttouch.mm.pv import (
    CLUSTER_PAGES,
    NO_CHUNK,
    add_chunk,
    add_entry,
    frame_of,
    free_chunk,
    needs_chunk,
    remove_entry,
)
from firsttouch.mm.reservation import (
    NO_FRAME,
    NOTHING,
    NR_MAPPINGS,
    QUEUED,
    RETURNED,
    TICK_NS,
    break_oldest,
    give_back,
    is_reserved,
    is_used,
    reserve,
    take_page,
)
from firsttouch.mm.vmlocks import CHUNK_LIST, MAP, OBJECT, PAGE, PV_LIST, READ, RESERV, WRITE, release, take, upgrade
from firsttouch.mm.vmobject import NO_LOCK, NO_OBJECT, is_file_first
from firsttouch.mm.vmsuper import SUPERPAGE, demote, mapped_frame, promote
from firsttouch.mm.world import (
    COPIED_BYTES,
    COW,
    FILE,
    NO_FAULT,
    OUT_OF_MEMORY,
    REUSE,
    SHARED_FILL,
    SPURIOUS,
    ZERO_FILL,
    ZERO_PAGE_READ,
    World,
)
from firsttouch.units import PMD_ORDER, PMD_PAGES
from firsttouch.workload import ANON, RECORDED
from firsttouch.workload import WRITE as WRITE_ACCESS

(LOCK_MAP, LOCK_FIRST, LOOK_FIRST, LOOK_AGAIN, ALLOC, FILL, LOCK_SECOND, LOOK_SECOND, COPY, UNLOCK, CHUNK, NEW_CHUNK,
 OLD_LIST, LIST, ENTER, LOCK_QUEUE, QUEUE, AHEAD, AHEAD_CHUNK, AHEAD_ENTER, END, PARTPOP, PROMOTED) = range(
    16, 39
)  # fmt: skip


@inlined
def ask(w: World, cpu: int, kind: int, index: int, wish: int) -> None:
    """Take a lock, or wait for it."""
    take(w.vmlocks, w.sched, kind, index, cpu, wish)


@inlined
def let_go(w: World, cpu: int, kind: int, index: int) -> None:
    """End an open hold."""
    release(w.vmlocks, w.sched, kind, index, cpu)


@inlined
def page_lock(w: World, frame: int) -> int:
    """Which lock of the pool guards the pages of a frame."""
    return frame % int(w.vmlocks.first[PAGE + 1] - w.vmlocks.first[PAGE])


@inlined
def list_lock(w: World, frame: int) -> int:
    """Which lock guards the pv lists of a frame."""
    return frame % int(w.pv.nr_locks)


@inlined
def sticks(w: World, cpu: int, t: int, frame: int) -> bool:
    """Whether the thread holds the lock of the frame's lists; if not, it asks for that, without any other."""
    lock = list_lock(w, frame)
    if w.vmobject.pv_lock[t] == lock:
        return True
    let_go_list(w, cpu, t)
    w.vmobject.pv_lock[t] = lock
    ask(w, cpu, PV_LIST, lock, WRITE)
    return False


@inlined
def let_go_list(w: World, cpu: int, t: int) -> None:
    """Drop the lock that the thread holds over pages, if any."""
    lock = int(w.vmobject.pv_lock[t])
    if lock != NO_LOCK:
        w.vmobject.pv_lock[t] = NO_LOCK
        let_go(w, cpu, PV_LIST, lock)


@inlined
def file_frame(w: World, vma: int, page: int) -> int:
    """The frame in which a page of a mapped file is cached."""
    files = w.pv.files
    return int(files.frame[files.first[vma] + (files.skipped[vma] + page - w.vmas.start[vma]) // CLUSTER_PAGES])


@state_kernel
def new_chunk(w: World, mm: int) -> None:
    """One more chunk for an address space; no room for it is as no room for page tables: the replay begins anew."""
    if not add_chunk(w.pv, mm):
        w.pmap.counts[SLOTS_FULL] = 1


@state_kernel
def enter_pv(w: World, mm: int, entry: int, frame: int) -> None:
    """An entry of the page tables maps a page of `frame` from now on."""
    if needs_chunk(w.pv, mm):  # another thread has used up the chunk that was made for it
        new_chunk(w, mm)
    if w.pmap.counts[SLOTS_FULL] == 0:
        add_entry(w.pv, mm, entry, frame)


@state_kernel
def drop(w: World, cpu: int, mm: int, slot: int, entry: int) -> None:
    """Unmap a page at no cost of locks: the recording shows that its mapping was lost, not how."""
    demote(w, mm, slot)
    chunk = remove_entry(w.pv, mm, entry)
    if chunk != NO_CHUNK:
        free_chunk(w.pv, chunk)
    pfn = clear_entry(w.pmap, mm, slot, entry)
    if pfn != NO_PFN:
        free_page(w, cpu, pfn)


@part
def touch(w: World, cpu: int, t: int, e: int, limit_ns: int) -> int:
    """Do (or go on with) one touch of event `e` of thread `t`; whether it is done."""
    while True:
        if fault_step(w, cpu, t, e):
            return 1
        if w.sched.clock_ns[cpu] > limit_ns or w.vmlocks.granted[0] != 0:
            return 0


@state_kernel
def fault_step(w: World, cpu: int, t: int, e: int) -> bool:
    """One stage of a fault; whether the touch is done."""
    pr, cost = w.progress, w.cost
    mm, stage = int(pr.mm[t]), int(pr.stage[t])
    first = int(w.vmobject.first[t])
    if stage < LOCK_MAP:
        return begin(w, cpu, t, e, mm)
    if stage == LOCK_MAP:
        pr.stage[t] = LOCK_FIRST
        ask(w, cpu, MAP, mm, READ)
    elif stage == LOCK_FIRST:
        pr.stage[t] = LOOK_FIRST
        ask(w, cpu, OBJECT, first, READ)
    elif stage == LOOK_FIRST:
        look_first(w, cpu, t)
    elif stage == LOOK_AGAIN:
        look_again(w, cpu, t)
    elif stage == ALLOC:
        return not allocate(w, cpu, t, e)
    elif stage == PARTPOP:
        pr.stage[t] = after_alloc(w, t)
        ask(w, cpu, RESERV, zone_of(w.buddy, int(pr.pfn[t])), cost.zone_page)
    elif stage == FILL:
        zero_block(w, cpu, int(pr.pfn[t]), 0, int(pr.zeroed[t]))
        pr.stage[t] = UNLOCK
    elif stage in (LOCK_SECOND, LOOK_SECOND, COPY):
        copy_step(w, cpu, t)
    elif stage == UNLOCK:
        let_go(w, cpu, OBJECT, first if w.vmobject.second[t] == NO_OBJECT else int(w.vmobject.second[t]))
        pr.stage[t] = CHUNK
    elif stage in (CHUNK, NEW_CHUNK, OLD_LIST, LIST):
        pv_step(w, cpu, t, e, mm)
    elif stage == ENTER:
        enter(w, cpu, t, e, mm)
    elif stage == PROMOTED:
        pr.stage[t] = after_ahead(w, t)
        ask(w, cpu, CHUNK_LIST, 0, w.vmobject.nr_emptied[t] * cost.zone_page)
        w.vmobject.nr_emptied[t] = 0
    elif stage == LOCK_QUEUE:
        pr.stage[t] = QUEUE
        ask(w, cpu, OBJECT, first, WRITE)
    elif stage == QUEUE:
        pr.stage[t] = END
        ask(w, cpu, PAGE, page_lock(w, int(w.vmobject.frame[t])), cost.zone_page)
    elif stage in (AHEAD, AHEAD_CHUNK, AHEAD_ENTER):
        ahead_step(w, cpu, t, e, mm)
    else:
        end(w, cpu, t, e, mm)
        return True
    return False


@state_kernel
def begin(w: World, cpu: int, t: int, e: int, mm: int) -> bool:
    """Serve the touch if the page is mapped for it (return True), else trap, and say which objects to look in."""
    pm, pr = w.pmap, w.progress
    page = pr.step[t]
    slot = need_slot(pm, mm, page)
    if slot == NO_SLOT:
        return True
    entry = entry_of(slot, page)
    kind, vma = int(w.events.kind[e]), int(w.events.vma[e])
    flags = int(w.vmas.flags[vma])
    state = int(pm.state[entry])
    if kind & RECORDED:
        credit(w, t, recorded_cost(w, kind, flags, state))
    service = NO_FAULT
    if state & STATE != NONE:
        service = service_of_mapped(w, state, kind, flags)
        if service == NO_FAULT:
            if kind & RECORDED == 0 or is_better_mapped(kind, state):
                pm.state[entry] = state & ~FRESH
                serve(w, cpu, mm, entry, kind)
                return True
            drop(w, cpu, mm, slot, entry)
    if service == NO_FAULT:
        service = service_of_none(kind, flags)
    if service == ZERO_PAGE_READ:
        service = ZERO_FILL  # there is no page of zeros that all share
    if service == COW and pm.state[entry] & STATE == ANON_RO and is_last_user(pm, slot, entry):
        service = REUSE
    pr.service[t] = service
    w.vmobject.fast[t] = False
    pr.order[t] = 0
    pr.start_ns[t] = w.sched.clock_ns[cpu]
    set_objects(w, t, mm, vma, flags, int(pm.state[entry]) & STATE, service)
    advance(w, cpu, max(0, w.cost.trap - w.cost.walk - w.cost.install))
    pr.stage[t] = LOCK_MAP
    return False


@state_kernel
def set_objects(w: World, t: int, mm: int, vma: int, flags: int, mapped: int, service: int) -> None:
    """Where the fault looks first, and where it then finds the page if that is behind."""
    o = w.vmobject
    file = o.file[vma]
    o.second[t] = NO_OBJECT
    o.first[t] = mm
    if is_file_first(flags):
        o.first[t] = file
    elif flags & ANON == 0 and mapped not in (ANON_RO, ANON_RW):
        o.second[t] = file
    elif service in (COW, REUSE) and o.behind[mm] != NO_OBJECT:
        o.second[t] = o.behind[mm]


@state_kernel
def look_first(w: World, cpu: int, t: int) -> None:
    """A reader of the first object: is the page there? If not it takes a writer."""
    pr, o = w.progress, w.vmobject
    advance(w, cpu, w.cost.walk)
    first, service = int(o.first[t]), int(pr.service[t])
    if o.second[t] == NO_OBJECT and (service in (FILE, SPURIOUS) or (service == REUSE and first >= o.nr_mms)):
        o.fast[t] = True
        pr.stage[t] = CHUNK
        if w.reservation.on and service == FILE and fits_superpage(w, t):
            pr.order[t] = PMD_ORDER
        return
    pr.stage[t] = LOOK_AGAIN
    if not upgrade(w.vmlocks, w.sched, OBJECT, first, cpu):
        let_go(w, cpu, OBJECT, first)
        ask(w, cpu, OBJECT, first, WRITE)


@state_kernel
def fits_superpage(w: World, t: int) -> bool:
    """Whether a read of a file may map its whole region at once: inside the mapping, and nothing of it is mapped."""
    e = w.sched.next_event[t]
    vma, first = int(w.events.vma[e]), int(w.progress.step[t]) & ~(PMD_PAGES - 1)
    if w.events.kind[e] & WRITE_ACCESS or first < w.vmas.start[vma] or first + PMD_PAGES > w.vmas.end[vma]:
        return False
    return bool(w.pmap.nr_mapped[find_slot(w.pmap, int(w.progress.mm[t]), first)] == 0)


@state_kernel
def map_superpage(w: World, mm: int, vma: int, slot: int, head: int) -> None:
    """Map the cached pages of a whole region of a file, which begins at `head`, by one entry."""
    pm = w.pmap
    for entry in range(slot * PMD_PAGES, (slot + 1) * PMD_PAGES):
        map_pfnless(pm, slot, entry, FILE_RO)
    enter_pv(w, mm, slot * PMD_PAGES, file_frame(w, vma, head))
    pm.huge[slot] = SUPERPAGE
    w.reservation.counts[NR_MAPPINGS] += 1


@state_kernel
def look_again(w: World, cpu: int, t: int) -> None:
    """The writer of the first object: what now?"""
    pr = w.progress
    service = int(pr.service[t])
    if service in (ZERO_FILL, COW):
        pr.stage[t] = ALLOC
    elif service == SHARED_FILL:
        advance(w, cpu, w.cost.alloc + int(w.cost.zero[0]))
        pr.stage[t] = UNLOCK
    else:
        pr.stage[t] = UNLOCK if w.vmobject.second[t] == NO_OBJECT else LOCK_SECOND


@state_kernel
def allocate(w: World, cpu: int, t: int, e: int) -> bool:
    """ALLOC: a page for the first object. False: out of memory."""
    pr = w.progress
    pr.stage[t] = after_alloc(w, t)
    pfn, z = NO_PFN, UNZEROED
    if w.reservation.on:
        pfn = reserved_page(w, cpu, t, e)
    if pfn == NO_PFN:
        pfn, z = take_block(w, cpu, 0, pr.service[t] == ZERO_FILL)
    node = 0
    while pfn == NO_PFN and node < len(w.reservation.head):
        if w.reservation.on and break_oldest(w.reservation, w.buddy, node):
            pr.stage[t] = PARTPOP
            pfn, z = take_block(w, cpu, 0, pr.service[t] == ZERO_FILL)
        else:
            node += 1
    if pfn == NO_PFN:
        w.total[OUT_OF_MEMORY] = 1
        return False
    pr.pfn[t], pr.zeroed[t] = pfn, z
    advance(w, cpu, w.cost.alloc)
    return True


@inlined
def after_alloc(w: World, t: int) -> int:
    """The stage after a page has been found for the first object."""
    if w.progress.service[t] == ZERO_FILL:
        return FILL
    return COPY if w.vmobject.second[t] == NO_OBJECT else LOCK_SECOND


@state_kernel
def reserved_page(w: World, cpu: int, t: int, e: int) -> int:
    """The page of the region's reservation, made if there is none; NO_PFN if the page must come from elsewhere."""
    r, pr = w.reservation, w.progress
    page, mm = int(pr.step[t]), int(pr.mm[t])
    first = page & ~(PMD_PAGES - 1)
    if first < w.vmas.start[w.events.vma[e]]:
        return NO_PFN
    region = int(w.pmap.table[mm] + (page >> PMD_ORDER))
    frame = int(r.of_region[region])
    if frame == NO_FRAME:
        if w.pmap.nr_mapped[find_slot(w.pmap, mm, page)] > 0:
            return NO_PFN
        nr_zones = len(w.buddy.free_pages)
        zone = cpu * nr_zones // len(w.sched.clock_ns)
        for _ in range(nr_zones):
            advance(w, cpu, lock_free_pages(w, cpu, zone))
            frame = reserve(r, w.buddy, zone, region)
            if frame != NO_FRAME:
                break
            zone = (zone + 1) % nr_zones
        if frame == NO_FRAME:
            return NO_PFN
    elif is_used(r, frame, page - first):
        return NO_PFN
    if take_page(r, w.buddy, frame, page - first, int(w.sched.clock_ns[cpu]) // TICK_NS) == QUEUED:
        pr.stage[t] = PARTPOP
    return (frame << PMD_ORDER) + page - first


@inlined
def lock_free_pages(w: World, cpu: int, zone: int) -> int:
    """Take the lock of the free pages of a node for one block; return how long that keeps the CPU."""
    c = w.cost
    return acquire(w.locks, ZONE, zone, cpu, w.sched.clock_ns[cpu], c.zone_page, c.handoff, c.waiter)


@state_kernel
def free_page(w: World, cpu: int, pfn: int) -> int:
    """Give back a page that nothing maps, to its reservation if it is of one; what that asks for (reservation.py)."""
    if not is_reserved(w.reservation, pfn):
        free_folio(w, cpu, pfn)
        return NOTHING
    change = give_back(w.reservation, w.buddy, pfn, int(w.sched.clock_ns[cpu]) // TICK_NS)
    if change == RETURNED:
        advance(w, cpu, lock_free_pages(w, cpu, zone_of(w.buddy, pfn)))
    return change


@state_kernel
def copy_step(w: World, cpu: int, t: int) -> None:
    """The object behind has the page: map that, or copy it, with neither object locked."""
    pr, o = w.progress, w.vmobject
    stage, first, second = int(pr.stage[t]), int(o.first[t]), int(o.second[t])
    if stage == LOCK_SECOND:
        pr.stage[t] = LOOK_SECOND
        ask(w, cpu, OBJECT, second, WRITE)
    elif stage == LOOK_SECOND:
        let_go(w, cpu, OBJECT, first)
        advance(w, cpu, w.cost.walk)
        pr.stage[t] = COPY if pr.service[t] == COW else UNLOCK
    else:
        let_go(w, cpu, OBJECT, first if second == NO_OBJECT else second)
        advance(w, cpu, on_bus(w, cpu, w.cost.copy_page, w.cost.bus_copy_page))
        w.total[COPIED_BYTES] += w.rules.page_bytes
        pr.stage[t] = CHUNK


@state_kernel
def frame_of_page(w: World, t: int, e: int, slot: int, entry: int) -> int:
    """The frame of the page that the fault is to map, or has found mapped."""
    pr = w.progress
    service = int(pr.service[t])
    if service in (ZERO_FILL, COW):
        return frame_of(pr.pfn[t])
    if w.pmap.state[entry] & STATE != NONE:
        return mapped_frame(w, slot, entry)
    return file_frame(w, int(w.events.vma[e]), pr.step[t])


@state_kernel
def pv_step(w: World, cpu: int, t: int, e: int, mm: int) -> None:
    """Get an entry of a chunk, and the locks of the lists that change."""
    pr, pm = w.progress, w.pmap
    stage = int(pr.stage[t])
    slot = find_slot(pm, mm, pr.step[t])
    entry = entry_of(slot, pr.step[t])
    is_mapped = pm.state[entry] & STATE != NONE
    if stage == CHUNK and pm.huge[slot] == SUPERPAGE and pr.service[t] in (COW, REUSE):
        nr_chunks = demote(w, mm, slot)
        advance(w, cpu, nr_chunks * w.cost.alloc)
        ask(w, cpu, CHUNK_LIST, 0, nr_chunks * w.cost.zone_page)
        return
    if stage == CHUNK:
        pr.stage[t] = OLD_LIST if is_mapped else LIST
        if not is_mapped and needs_chunk(w.pv, mm):
            advance(w, cpu, w.cost.alloc)
            pr.stage[t] = NEW_CHUNK
            ask(w, cpu, CHUNK_LIST, 0, w.cost.zone_page)
        return
    if stage == NEW_CHUNK:
        if needs_chunk(w.pv, mm):
            new_chunk(w, mm)
        pr.stage[t] = LIST
        return
    frame = frame_of_page(w, t, e, slot, entry)
    w.vmobject.frame[t] = frame
    hold_ns = int(w.cost.install)
    if stage == OLD_LIST:
        pr.stage[t] = LIST if pr.service[t] == COW or not is_mapped else ENTER  # the same page keeps its place
        if pr.service[t] != COW or not is_mapped:
            return
        old = int(w.pv.frame[w.pv.place_of[entry]])
        if list_lock(w, old) != list_lock(w, frame):
            ask(w, cpu, PV_LIST, list_lock(w, old), hold_ns)
        return
    pr.stage[t] = ENTER
    ask(w, cpu, PV_LIST, list_lock(w, frame), hold_ns)


@state_kernel
def enter(w: World, cpu: int, t: int, e: int, mm: int) -> None:
    """ENTER: the page is the program's."""
    pm, pr = w.pmap, w.progress
    slot = find_slot(pm, mm, pr.step[t])
    entry = entry_of(slot, pr.step[t])
    pfn, frame, kind = int(pr.pfn[t]), int(w.vmobject.frame[t]), int(w.events.kind[e])
    service = int(pr.service[t])
    is_mapped = pm.state[entry] & STATE != NONE
    if service == ZERO_FILL and is_mapped:
        pm.folio_order[pfn] = 0
        free_page(w, cpu, pfn)
        pr.service[t] = SPURIOUS  # another thread was first
    elif service in (ZERO_FILL, COW):
        if is_mapped:
            drop(w, cpu, mm, slot, entry)
        cold = coldness(w, 0, int(pr.zeroed[t])) if service == ZERO_FILL else 0
        map_block(pm, mm, slot, entry, pfn, 0, ANON_RW | cold)
        enter_pv(w, mm, entry, frame)
    elif service == REUSE:
        install_reuse(pm, slot, entry)
    elif service == SPURIOUS or is_mapped:
        pass
    else:
        state = SHMEM if service == SHARED_FILL else FILE_RW if kind & WRITE_ACCESS else FILE_RO
        if service == FILE:
            advance(w, cpu, w.cost.file_map)
        if pr.order[t] == PMD_ORDER and pm.nr_mapped[slot] == 0:
            vma, page = int(w.events.vma[e]), int(pr.step[t])
            map_superpage(w, mm, vma, slot, page & ~(PMD_PAGES - 1))
            first, last = around_window(w.vmas.start[vma], w.vmas.end[vma], page, w.rules.recorded_window_pages)
            for other in range(first, last):
                pm.state[entry_of(slot, other)] |= NEAR if other != page else 0
        else:
            map_pfnless(pm, slot, entry, state)
            enter_pv(w, mm, entry, frame)
    pr.mapped[t] = 0
    pr.stage[t] = AHEAD if pr.service[t] == FILE and pm.huge[slot] != SUPERPAGE else after_ahead(w, t)
    if w.reservation.on:
        if kind & WRITE_ACCESS and pm.state[entry] & STATE == ANON_RW:
            pm.state[entry] |= WRITTEN
        nr_chunks = promote(w, mm, slot, pm.table[mm] + (pr.step[t] >> PMD_ORDER))
        if nr_chunks > 0:
            w.vmobject.nr_emptied[t] = nr_chunks
            pr.stage[t] = PROMOTED


@inlined
def after_ahead(w: World, t: int) -> int:
    """The stage after the neighbours: a writer has let go of its object, and queues the page."""
    return END if w.vmobject.fast[t] else LOCK_QUEUE


@state_kernel
def ahead_step(w: World, cpu: int, t: int, e: int, mm: int) -> None:
    """Enter the next cached neighbour, each under the lock of its list."""
    pm, pr = w.pmap, w.progress
    vma, stage, page = int(w.events.vma[e]), int(pr.stage[t]), pr.step[t]
    start, end_page = w.vmas.start[vma], w.vmas.end[vma]
    advice = advice_of(int(w.vmas.flags[vma]))
    behind, ahead = int(w.around.behind[advice]), int(w.around.ahead[advice])
    other = page + neighbour(int(pr.mapped[t]))
    slot = find_slot(pm, mm, other) if start <= other < end_page else NO_SLOT
    while stage == AHEAD:
        i = int(pr.mapped[t])
        if i >= 2 * max(behind, ahead):
            pr.stage[t] = after_ahead(w, t)
            return
        other = page + neighbour(i)
        is_near = page - behind <= other <= page + ahead and start <= other < end_page
        slot = find_slot(pm, mm, other) if is_near else NO_SLOT
        if slot == NO_SLOT or pm.state[entry_of(slot, other)] & STATE != NONE:
            pr.mapped[t] += 1
        elif needs_chunk(w.pv, mm):
            advance(w, cpu, w.cost.alloc)
            pr.stage[t] = AHEAD_CHUNK
            ask(w, cpu, CHUNK_LIST, 0, w.cost.zone_page)
            return
        else:
            hold_ns = min(w.cost.map_page, w.cost.install)
            advance(w, cpu, w.cost.map_page - hold_ns)
            pr.stage[t] = AHEAD_ENTER
            ask(w, cpu, PV_LIST, list_lock(w, file_frame(w, vma, other)), hold_ns)
            return
    if stage == AHEAD_CHUNK:
        if needs_chunk(w.pv, mm):
            new_chunk(w, mm)
    else:
        entry = entry_of(slot, other)
        pr.mapped[t] += 1
        if pm.state[entry] & STATE == NONE:
            near_first, near_last = around_window(start, end_page, page, w.rules.recorded_window_pages)
            map_pfnless(pm, slot, entry, FILE_RO | NEAR if near_first <= other < near_last else FILE_RO)
            enter_pv(w, mm, entry, file_frame(w, vma, other))
    pr.stage[t] = AHEAD


@inlined
def neighbour(i: int) -> int:
    """How far the i-th neighbour is: -1, +1, -2, +2, ..."""
    return (i // 2 + 1) * (2 * (i % 2) - 1)


@state_kernel
def end(w: World, cpu: int, t: int, e: int, mm: int) -> None:
    """END: let go of the object and the map; the program has its page."""
    pm, pr = w.pmap, w.progress
    let_go(w, cpu, OBJECT, int(w.vmobject.first[t]))
    let_go(w, cpu, MAP, mm)
    count_fault(w, int(pr.service[t]), w.sched.clock_ns[cpu] - pr.start_ns[t])
    slot = find_slot(pm, mm, pr.step[t])
    entry = entry_of(slot, pr.step[t])
    if pm.state[entry] & STATE != NONE:  # else another thread unmapped it meanwhile
        pm.state[entry] |= FRESH
        serve(w, cpu, mm, entry, int(w.events.kind[e]))
