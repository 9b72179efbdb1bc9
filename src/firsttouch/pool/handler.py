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

from firsttouch._jit import state_kernel
from firsttouch._native import (
    add_shared,
    c_function,
    call_2,
    call_3,
    clock_ns,
    compare_exchange,
    copy_bytes,
    entry,
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
from firsttouch.mm.buddy import zone_of
from firsttouch.mm.freelists import NO_PFN, UNZEROED, ZEROED
from firsttouch.pool.arena import release_pages, shrink_pages, take_pages, wake_for
from firsttouch.pool.state import (
    AHEAD_BYTES,
    BASE,
    DEFERRED,
    END,
    FORKING,
    FRESH_BYTES,
    HOT,
    HOT_BYTES,
    HOT_NS,
    JOINED,
    LARGE_CALLOC,
    LARGE_FREE,
    LARGE_MALLOC,
    LOCK,
    NEXT_CALLOC,
    NEXT_CTX,
    NEXT_FREE,
    NEXT_MALLOC,
    NEXT_REALLOC,
    NO_THREAD,
    NR_CALLOCS,
    NR_DEFERRED,
    NR_FALLBACKS,
    NR_MALLOCS,
    NR_WORDS,
    NR_ZERO_HITS,
    NR_ZERO_HOT,
    NR_ZERO_MISSES,
    NR_ZERO_UNFAULTED,
    PAGE_BYTES,
    PAGE_SHIFT,
    REUSED_BYTES,
    SCRATCH,
    SCRUB_MAIN,
    START_ORDER,
    STARTING,
    STOP,
    THREAD,
    THRESHOLD,
    UNFAULTED,
    WAKE,
    ZEROED_BYTES,
    Arena,
    make_arena,
)

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
        moved = allocate(a, nr_bytes, False)
    if moved == 0:
        moved = call_2(a.word[NEXT_MALLOC], a.word[NEXT_CTX], nr_bytes)
    if moved:
        copy_bytes(moved, address, min(nr_bytes, have << PAGE_SHIFT))
        release(a, ctx, address)
    return moved


# What C calls. A size beyond 2**63 looks negative, and goes to who knows better. Nearly all calls are of small arrays:
# their way is a compare and a jump, and the functions that need a stack are jumped to as well.


@entry(types.int64(types.int64, types.int64))
def pool_malloc(ctx, nr_bytes):  # type: ignore[no-untyped-def]
    """`malloc(ctx, size)` of a NumPy handler."""
    a = arena_at(ctx)
    if nr_bytes >= a.word[THRESHOLD]:
        return call_2(a.word[LARGE_MALLOC], ctx, nr_bytes)
    return call_2(a.word[NEXT_MALLOC], a.word[NEXT_CTX], nr_bytes)


@entry(types.int64(types.int64, types.int64, types.int64))
def pool_calloc(ctx, nr_items, item_bytes):  # type: ignore[no-untyped-def]
    """`calloc(ctx, nelem, elsize)` of a NumPy handler."""
    a = arena_at(ctx)
    if (nr_items | item_bytes) >> 31 or nr_items * item_bytes >= a.word[THRESHOLD]:
        return call_3(a.word[LARGE_CALLOC], ctx, nr_items, item_bytes)
    return call_3(a.word[NEXT_CALLOC], a.word[NEXT_CTX], nr_items, item_bytes)


@entry(types.int64(types.int64, types.int64, types.int64))
def pool_realloc(ctx, address, nr_bytes):  # type: ignore[no-untyped-def]
    """`realloc(ctx, ptr, new_size)` of a NumPy handler."""
    a = arena_at(ctx)
    if a.word[BASE] <= address < a.word[END]:
        return resize(a, ctx, address, nr_bytes)
    return call_3(a.word[NEXT_REALLOC], a.word[NEXT_CTX], address, nr_bytes)


@entry(types.int64(types.int64, types.int64, types.int64))
def pool_free(ctx, address, nr_bytes):  # type: ignore[no-untyped-def]
    """`free(ctx, ptr, size)` of a NumPy handler. What it returns, no one looks at."""
    a = arena_at(ctx)
    if a.word[BASE] <= address < a.word[END]:
        return call_2(a.word[LARGE_FREE], ctx, address)
    return call_3(a.word[NEXT_FREE], a.word[NEXT_CTX], address, nr_bytes)


@entry(types.int64(types.int64, types.int64))
def large_malloc(ctx, nr_bytes):  # type: ignore[no-untyped-def]
    """`pool_malloc` from the threshold up."""
    a = arena_at(ctx)
    address = allocate(a, nr_bytes, False)
    return address if address else call_2(a.word[NEXT_MALLOC], a.word[NEXT_CTX], nr_bytes)


@entry(types.int64(types.int64, types.int64, types.int64))
def large_calloc(ctx, nr_items, item_bytes):  # type: ignore[no-untyped-def]
    """`pool_calloc` from the threshold up, and of what may not be a size at all."""
    a = arena_at(ctx)
    if 0 < nr_items < 1 << 47 and 0 < item_bytes < 1 << 47 and nr_items <= (1 << 47) // item_bytes:
        nr_bytes = nr_items * item_bytes
        if nr_bytes >= a.word[THRESHOLD]:
            address = allocate(a, nr_bytes, True)
            if address:
                return address
    return call_3(a.word[NEXT_CALLOC], a.word[NEXT_CTX], nr_items, item_bytes)


@entry(types.int64(types.int64, types.int64))
def large_free(ctx, address):  # type: ignore[no-untyped-def]
    """`pool_free` of a block of the arena."""
    release(arena_at(ctx), ctx, address)
    return 0
