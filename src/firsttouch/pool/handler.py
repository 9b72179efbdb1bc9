"""What NumPy calls: malloc, calloc, realloc and free, compiled, for a `PyDataMem_Handler` whose ctx is the arena.

Requests below the threshold, and those the arena has no room for, go to the functions that were there before, found at
words NEXT_*. Whose an address is, its value alone says: `free` and `realloc` ask neither the size that NumPy believes
in nor which handler is installed.

Each zone has a lock, a word that spins. No one waits for it long: `malloc` then goes to the functions that were there
before, and `free` puts the block on the zone's list of deferred frees, which the next holder of the lock takes over.
So a lock that is held across a fork, by a thread that the scheduler left out, or for ever, costs memory but no hang.
Memory is zeroed outside the lock.

Needs the JIT.
"""

from __future__ import annotations

from typing import Any

from numba import typeof as untyped_typeof
from numba import types

from firsttouch._jit import callback, state_kernel
from firsttouch._native import (
    add_shared,
    c_function,
    call_2,
    call_3,
    clock_ns,
    compare_exchange,
    copy_bytes,
    exchange,
    fill_zero,
    load_acquire,
    relax,
    sleep_us,
    store_release,
    thread_self,
    wake_one,
    word,
)
from firsttouch._packed import packed
from firsttouch.mm.buddy import NO_PFN, UNZEROED, ZEROED, zone_of
from firsttouch.pool.arena import (
    AHEAD_BYTES,
    HOT,
    JOINED,
    NR_CALLOCS,
    NR_DEFERRED,
    NR_MALLOCS,
    NR_ZERO_HITS,
    NR_ZERO_HOT,
    NR_ZERO_MISSES,
    NR_ZERO_UNFAULTED,
    PAGE_SHIFT,
    REUSED_BYTES,
    UNFAULTED,
    ZEROED_BYTES,
    Arena,
    make_arena,
    release_pages,
    shrink_pages,
    take_pages,
    wake_for,
)

PAGE_BYTES = 1 << PAGE_SHIFT

# Words of the arena: settings
BASE, END = 0, 1  # addresses of the arena
THRESHOLD = 2  # requests below it are not for the arena; NOTHING: none is
NEXT_CTX, NEXT_MALLOC, NEXT_CALLOC, NEXT_REALLOC, NEXT_FREE = 3, 4, 5, 6, 7
HOT_BYTES, HOT_NS = 8, 9  # zeros of at most so many bytes come from memory freed at most so long ago
FRESH_BYTES = 10  # the C library maps fresh memory for every request from here up
START_ORDER, STOP_ORDER = 11, 12  # of the scrubber: wakes at a free of this order; zeroes blocks down to that
SCRUB_MAIN = 13  # the scrubber's thread begins at this address; 0: there is no scrubber
MAX_FLYING_ORDER = 14  # the most that the scrubber holds
AGE_NS = 15  # memory freed more recently than this is not scrubbed
NAP_US, BUSY_PERCENT, PACE_US = 16, 17, 18  # the process is idle if it used less of the CPU in a nap; else a pace, or 0
LOAD = 19  # no scrubbing at this load average or above
WINDOW_START, WINDOW_END, UTC_OFFSET_S = 20, 21, 22  # minutes of the day; equal for all day
DECAY_NS = 23  # what was not used for so long goes back to the kernel; 0: nothing does
PRESSURE_PERCENT = 24  # of time lost for want of memory; from here up all free memory goes back. 0: no matter
ALLOCATE, FREE, TRIM = (
    25,
    26,
    27,
)  # addresses of pool_allocate, pool_free, trim: each is compiled once, and called there
# What changes
KEEP_PAGES = 32  # free faulted pages to have ready, and not to give back
FORKING = 33  # a thread is about to fork and holds every lock
NR_FALLBACKS = 34  # requests from the threshold up that the arena had no room for
WAKE = 35  # counts wake-ups; the scrubber sleeps on it
THREAD = 36  # of the scrubber: NO_THREAD, STARTING, RUNNING
STOP = 37
NR_NAPS, NR_BUSY_NAPS = 38, 39  # the scrubber's; the second: in which the process was busy
FLYING_PFN, FLYING_ORDER, FLYING_FAULTED = 40, 41, 42  # what the scrubber has in flight; the first NO_PFN: nothing
SCRATCH = 64  # of the scrubber, to the end
NR_WORDS = 128
# Words of zone i begin at NR_WORDS + 8 * i, a cache line each
LOCK, DEFERRED = 0, 1  # DEFERRED: page + 1 of the first deferred free, 0 for none; `next` of the block links them

NO_THREAD, STARTING, RUNNING = 0, 1, 2
NOTHING = 2**63 - 1

typeof: Any = untyped_typeof
_ARENA = typeof(packed(make_arena([1], NR_WORDS + 8)))  # sizes are no part of the type


@word
def arena_at(typing_context, ctx):  # type: ignore[no-untyped-def]
    """The arena whose block of words is at the address `ctx`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[0]

    return _ARENA(types.int64), generate


# Locks


@state_kernel
def word_address(a: Arena, i: int) -> int:
    """The address of a word, for atomic steps."""
    return a.words_address + 8 * i


@state_kernel
def try_lock(a: Arena, zone: int) -> bool:
    """Take the lock of a zone if nobody has it."""
    return bool(exchange(a.words_address + 8 * (NR_WORDS + 8 * zone + LOCK), 1) == 0)


@state_kernel
def unlock(a: Arena, zone: int) -> None:
    """Let go of the lock."""
    store_release(a.words_address + 8 * (NR_WORDS + 8 * zone + LOCK), 0)


@state_kernel
def lock(a: Arena, zone: int, nr_sleeps: int) -> bool:
    """Take the lock of a zone: spin for a microsecond or two, then sleep so many times; False without it."""
    address = a.words_address + 8 * (NR_WORDS + 8 * zone + LOCK)
    for sleep in range(nr_sleeps + 1):
        for _ in range(100):
            if load_acquire(address) == 0 and exchange(address, 1) == 0:
                return True
            relax()
        if sleep < nr_sleeps:
            sleep_us(20)
    return False


@state_kernel
def defer(a: Arena, zone: int, pfn: int) -> None:
    """Leave a block for the next holder of the lock to free."""
    head = a.words_address + 8 * (NR_WORDS + 8 * zone + DEFERRED)
    while True:
        first = load_acquire(head)
        a.faulted.next[pfn] = first
        if compare_exchange(head, first, pfn + 1) == first:
            return


@state_kernel
def drain(a: Arena, zone: int, now_ns: int) -> None:
    """Free what was deferred. Under the lock."""
    head = a.words_address + 8 * (NR_WORDS + 8 * zone + DEFERRED)
    if load_acquire(head) == 0:
        return
    link = exchange(head, 0)
    while link:
        pfn = link - 1
        link = int(a.faulted.next[pfn])
        release_pages(a, zone, pfn, now_ns)
        a.counts[zone, NR_DEFERRED] += 1


# Allocation


@state_kernel
def _count(a: Arena, zone: int, nr_bytes: int, zeros: bool, source: int) -> None:
    """Account for a block handed out. Under the lock."""
    if source != UNFAULTED and nr_bytes >= a.word[FRESH_BYTES]:
        a.counts[zone, REUSED_BYTES] += nr_bytes
    if not zeros:
        a.counts[zone, NR_MALLOCS] += 1
        return
    a.counts[zone, NR_CALLOCS] += 1
    if source == ZEROED:
        a.counts[zone, NR_ZERO_HITS] += 1
        a.counts[zone, AHEAD_BYTES] += nr_bytes
    elif source == UNFAULTED:
        a.counts[zone, NR_ZERO_UNFAULTED] += 1
    else:
        a.counts[zone, NR_ZERO_HOT if source == HOT else NR_ZERO_MISSES] += 1
        if source != JOINED:
            a.counts[zone, ZEROED_BYTES] += nr_bytes


@state_kernel
def _zero_joined(a: Arena, pfn: int, nr_bytes: int) -> int:
    """Zero the unzeroed blocks among those joined for one request; returns how many bytes that took."""
    zeroed_bytes = 0
    address = a.word[BASE] + (pfn << PAGE_SHIFT)
    while nr_bytes > 0:
        piece = int(a.faulted.next[pfn]) << PAGE_SHIFT
        if a.faulted.prev[pfn] == UNZEROED:
            fill_zero(address, min(piece, nr_bytes))
            zeroed_bytes += min(piece, nr_bytes)
        pfn += piece >> PAGE_SHIFT
        address += piece
        nr_bytes -= piece
    return zeroed_bytes


@state_kernel
def allocate(a: Arena, nr_bytes: int, zeros: bool) -> int:
    """The address of a block, or 0 when there is no room or no lock to be had."""
    if nr_bytes > a.word[END] - a.word[BASE]:  # so large perhaps that rounding it up would overflow
        add_shared(word_address(a, NR_FALLBACKS), 1)
        return 0
    nr = (nr_bytes + PAGE_BYTES - 1) >> PAGE_SHIFT
    nr_zones = a.counts.shape[0]
    home = (thread_self() >> 12) % nr_zones if nr_zones > 1 else 0
    now_ns = clock_ns()
    hot_since_ns = 0
    if zeros and nr_bytes <= a.word[HOT_BYTES]:
        hot_since_ns = max(1, now_ns - a.word[HOT_NS])
    for i in range(nr_zones):
        zone = (home + i) % nr_zones
        if load_acquire(word_address(a, FORKING)) or not lock(a, zone, 100):
            continue
        drain(a, zone, now_ns)
        pfn, source = take_pages(a, zone, nr, zeros, hot_since_ns)
        if pfn != NO_PFN:
            _count(a, zone, nr_bytes, zeros, source)
        unlock(a, zone)
        if pfn != NO_PFN:
            address = int(a.word[BASE]) + (pfn << PAGE_SHIFT)
            if zeros and source in (UNZEROED, HOT):
                fill_zero(address, nr_bytes)
            elif zeros and source == JOINED:
                _zero_joined(a, pfn, nr_bytes)
            return address
    add_shared(word_address(a, NR_FALLBACKS), 1)
    return 0


_pthread_create = c_function("pthread_create", types.int32, *[types.int64] * 4)
_pthread_detach = c_function("pthread_detach", types.int32, types.int64)


@state_kernel
def start_scrubber(a: Arena, ctx: int) -> None:
    """Have a thread for the scrubber, if there is none."""
    thread = word_address(a, THREAD)
    if a.word[SCRUB_MAIN] == 0 or load_acquire(word_address(a, STOP)):
        return
    if compare_exchange(thread, NO_THREAD, STARTING) != NO_THREAD:
        return
    if _pthread_create(word_address(a, SCRATCH), 0, a.word[SCRUB_MAIN], ctx):
        store_release(thread, NO_THREAD)
    else:
        _pthread_detach(a.word[SCRATCH])


@state_kernel
def wake(a: Arena, ctx: int) -> None:
    """Wake the scrubber's thread; start it where there is none, as in a forked child."""
    add_shared(word_address(a, WAKE), 1)
    if load_acquire(word_address(a, THREAD)) == NO_THREAD:
        start_scrubber(a, ctx)
    else:
        wake_one(word_address(a, WAKE))


@state_kernel
def release(a: Arena, ctx: int, address: int) -> None:
    """Free a block of the arena."""
    pfn = (address - a.word[BASE]) >> PAGE_SHIFT
    zone = zone_of(a.faulted, pfn)
    if not lock(a, zone, 0):
        defer(a, zone, pfn)
        return
    now_ns = clock_ns()
    drain(a, zone, now_ns)
    order = release_pages(a, zone, pfn, now_ns)
    woken = wake_for(a, zone, a.word[START_ORDER], order)
    unlock(a, zone)
    if woken:
        wake(a, ctx)


@state_kernel
def resize(a: Arena, ctx: int, address: int, nr_bytes: int) -> int:
    """Another size for a block of the arena: the same place if it is to shrink, else another, or 0."""
    pfn = (address - a.word[BASE]) >> PAGE_SHIFT
    have = int(a.nr_pages[pfn])
    nr = (nr_bytes - 1 >> PAGE_SHIFT) + 1
    if nr <= have and nr_bytes >= a.word[THRESHOLD]:
        zone = zone_of(a.faulted, pfn)
        if nr < have and lock(a, zone, 0):  # without the lock it stays as long as it is
            shrink_pages(a, zone, pfn, nr, clock_ns())
            unlock(a, zone)
        return address
    moved = 0
    if nr_bytes >= a.word[THRESHOLD]:
        moved = call_3(a.word[ALLOCATE], ctx, nr_bytes, 0)
    if moved == 0:
        moved = call_2(a.word[NEXT_MALLOC], a.word[NEXT_CTX], nr_bytes)
    if moved:
        copy_bytes(moved, address, min(nr_bytes, have << PAGE_SHIFT))
        call_3(a.word[FREE], ctx, address, 0)
    return moved


# What C calls. A size beyond 2**63 looks negative, and goes to who knows better.


@callback(types.int64(types.int64, types.int64, types.int64))
def pool_allocate(ctx, nr_bytes, zeros):  # type: ignore[no-untyped-def]
    """`allocate` for the other callbacks."""
    return allocate(arena_at(ctx), nr_bytes, zeros != 0)


@callback(types.int64(types.int64, types.int64))
def pool_malloc(ctx, nr_bytes):  # type: ignore[no-untyped-def]
    """`malloc(ctx, size)` of a NumPy handler."""
    a = arena_at(ctx)
    if nr_bytes >= a.word[THRESHOLD]:
        address = call_3(a.word[ALLOCATE], ctx, nr_bytes, 0)
        if address:
            return address
    return call_2(a.word[NEXT_MALLOC], a.word[NEXT_CTX], nr_bytes)


@callback(types.int64(types.int64, types.int64, types.int64))
def pool_calloc(ctx, nr_items, item_bytes):  # type: ignore[no-untyped-def]
    """`calloc(ctx, nelem, elsize)` of a NumPy handler."""
    a = arena_at(ctx)
    if 0 < nr_items < 1 << 47 and 0 < item_bytes < 1 << 47 and nr_items <= (1 << 47) // item_bytes:
        nr_bytes = nr_items * item_bytes
        if nr_bytes >= a.word[THRESHOLD]:
            address = call_3(a.word[ALLOCATE], ctx, nr_bytes, 1)
            if address:
                return address
    return call_3(a.word[NEXT_CALLOC], a.word[NEXT_CTX], nr_items, item_bytes)


@callback(types.int64(types.int64, types.int64, types.int64))
def pool_realloc(ctx, address, nr_bytes):  # type: ignore[no-untyped-def]
    """`realloc(ctx, ptr, new_size)` of a NumPy handler."""
    a = arena_at(ctx)
    if a.word[BASE] <= address < a.word[END]:
        return resize(a, ctx, address, nr_bytes)
    return call_3(a.word[NEXT_REALLOC], a.word[NEXT_CTX], address, nr_bytes)


@callback(types.void(types.int64, types.int64, types.int64))
def pool_free(ctx, address, nr_bytes):  # type: ignore[no-untyped-def]
    """`free(ctx, ptr, size)` of a NumPy handler."""
    a = arena_at(ctx)
    if a.word[BASE] <= address < a.word[END]:
        release(a, ctx, address)
    else:
        call_3(a.word[NEXT_FREE], a.word[NEXT_CTX], address, nr_bytes)
