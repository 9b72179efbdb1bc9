"""The scrubber: a thread of compiled code that makes zeroed memory of unzeroed, ahead of use, when nothing else runs.

It wakes when a free merges to an unzeroed block of the start order and zeroes blocks, the highest order first, down to
the stop order: the model's scrubber, on the same lists. It also populates memory until there is as much free as is to
be ready, and gives memory back to the kernel that was not used for long, or that the machine is short of.

It disturbs as little as it can. Its class is SCHED_IDLE; it never waits for a lock except to return what it holds, one
block of at most 2 MiB; it never takes Python's lock. It works only when the process used hardly any CPU over a nap (the
kernel's account of other running threads moves once a tick, so a nap is several ticks), and ends a burst as soon as the
arena is used. Stores go past the caches. With nothing to do it sleeps until it is woken; a program that never idles
costs it a nap now and then.
"""

from __future__ import annotations

from numba import types

from firsttouch._jit import state_kernel
from firsttouch._mapping import MADV_DONTNEED, MADV_POPULATE_WRITE
from firsttouch._native import (
    add_shared,
    advise,
    c_function,
    call_2,
    clock_ns,
    entry,
    load_acquire,
    process_cpu_ns,
    sleep_us,
    store_release,
    wait_while,
    wake_one,
    zero_past_caches,
)
from firsttouch.mm.buddy import zone_of
from firsttouch.mm.freelists import NO_PFN
from firsttouch.pool.arena import (
    free_all,
    land_populated,
    land_unfaulted,
    land_unpopulated,
    land_unzeroed,
    land_zeroed,
    take_cold,
    take_faulted,
    take_unfaulted,
    wants_scrub,
)
from firsttouch.pool.handler import arena_at, drain, lock, start_scrubber, try_lock, unlock, word_address
from firsttouch.pool.state import (
    AGE_NS,
    BASE,
    BUSY_PERCENT,
    DECAY_NS,
    FLYING_FAULTED,
    FLYING_ORDER,
    FLYING_PFN,
    FORKING,
    HUGE_ORDER,
    KEEP_PAGES,
    LOAD,
    MAX_FLYING_ORDER,
    NAP_US,
    NO_THREAD,
    NR_BUSY_NAPS,
    NR_CALLOCS,
    NR_FREES,
    NR_MALLOCS,
    NR_NAPS,
    PACE_US,
    PAGE_SHIFT,
    PRESSURE_PERCENT,
    RUNNING,
    SCRATCH,
    SCRUBBED_BYTES,
    STOP,
    STOP_ORDER,
    THREAD,
    TRIM,
    UTC_OFFSET_S,
    WAKE,
    WINDOW_END,
    WINDOW_START,
    Arena,
)

_TRIM_ORDER = 10  # 64 MiB given back in one hold of the lock, less than 1 ms
_BURST_NS = 20_000_000
_HOUSE_NS = 1_000_000_000  # between looks at the load, the clock and the pressure
_LONG_NS = 3_600_000_000_000
_MAX_NAP_US = 50_000  # while the process is busy

# What the scrubber can do in one go
NOTHING_TO_DO, DONE, BUSY = 0, 1, 2


@state_kernel
def _address(a: Arena, pfn: int) -> int:
    return int(a.word[BASE]) + (pfn << PAGE_SHIFT)


@state_kernel
def _fly(a: Arena, pfn: int, k: int, was_faulted: bool) -> None:
    """Note what is in flight, for a child that is forked now. Under the lock."""
    a.word[FLYING_PFN] = pfn
    a.word[FLYING_ORDER] = k
    a.word[FLYING_FAULTED] = was_faulted


@state_kernel
def _return_to(a: Arena, zone: int) -> None:
    """Take the lock to return a block, however long it takes."""
    while not lock(a, zone, 1000):
        pass
    a.word[FLYING_PFN] = NO_PFN


@state_kernel
def scrub_one(a: Arena, zone: int, before_ns: int) -> int:
    """Zero one block that was freed before `before_ns`."""
    if not try_lock(a, zone):
        return BUSY
    drain(a, zone, clock_ns())
    pfn, k = take_cold(a, zone, a.word[STOP_ORDER], a.word[MAX_FLYING_ORDER], before_ns)
    _fly(a, pfn, k, True)
    unlock(a, zone)
    if pfn == NO_PFN:
        return NOTHING_TO_DO
    zero_past_caches(_address(a, pfn), 1 << (k + PAGE_SHIFT))
    _return_to(a, zone)
    land_zeroed(a, zone, pfn, k)
    a.counts[zone, SCRUBBED_BYTES] += 1 << (k + PAGE_SHIFT)
    unlock(a, zone)
    return DONE


@state_kernel
def populate_one(a: Arena, zone: int) -> int:
    """Have the kernel map one block of unfaulted memory."""
    if not try_lock(a, zone):
        return BUSY
    pfn, k = take_unfaulted(a, zone, a.word[MAX_FLYING_ORDER])
    _fly(a, pfn, k, False)
    unlock(a, zone)
    if pfn == NO_PFN:
        return NOTHING_TO_DO
    if advise(_address(a, pfn), 1 << (k + PAGE_SHIFT), MADV_POPULATE_WRITE):
        zero_past_caches(_address(a, pfn), 1 << (k + PAGE_SHIFT))  # a kernel before 5.14: fault it in by hand
    _return_to(a, zone)
    land_populated(a, zone, pfn, k)
    unlock(a, zone)
    return DONE


@state_kernel
def free_faulted_pages(a: Arena) -> int:
    """Free pages that are mapped. Read without locks: a hint."""
    total = 0
    for zone in range(a.counts.shape[0]):
        total += int(a.faulted.free_pages[zone])
    return total


@state_kernel
def activity(a: Arena) -> int:
    """Grows with every use of the arena."""
    total = 0
    for zone in range(a.counts.shape[0]):
        total += int(a.counts[zone, NR_MALLOCS] + a.counts[zone, NR_CALLOCS] + a.counts[zone, NR_FREES])
    return total


@state_kernel
def trim_to(a: Arena, keep_pages: int, min_order: int) -> int:
    """Give free memory back to the kernel until `keep_pages` free pages are mapped; returns bytes. It stays usable."""
    trimmed_bytes = 0
    for zone in range(a.counts.shape[0]):
        while free_faulted_pages(a) > keep_pages:
            if not lock(a, zone, 1000):
                break
            drain(a, zone, clock_ns())
            pfn, k = take_faulted(a, zone, min_order, _TRIM_ORDER)
            if pfn != NO_PFN:
                advise(_address(a, pfn), 1 << (k + PAGE_SHIFT), MADV_DONTNEED)
                land_unfaulted(a, zone, pfn, k)
                trimmed_bytes += 1 << (k + PAGE_SHIFT)
            unlock(a, zone)
            if pfn == NO_PFN:
                break
    return trimmed_bytes


# The thread

_getloadavg = c_function("getloadavg", types.int32, types.int64, types.int32)
_time = c_function("time", types.int64, types.int64)
_open = c_function("open", types.int32, types.int64, types.int32)
_read = c_function("read", types.int64, types.int32, types.int64, types.int64)
_close = c_function("close", types.int32, types.int32)
_sched_setscheduler = c_function("sched_setscheduler", types.int32, types.int32, types.int32, types.int64)
_pthread_sigmask = c_function("pthread_sigmask", types.int32, types.int32, types.int64, types.int64)
_prctl = c_function("prctl", types.int32, types.int32, types.int64, types.int64, types.int64, types.int64)
_SCHED_IDLE, _SIG_SETMASK, _PR_SET_NAME, _O_RDONLY_CLOEXEC = 5, 2, 15, 0o2000000

# Words of SCRATCH
_NUMBER, _PATH, _TEXT = SCRATCH + 2, SCRATCH + 4, SCRATCH + 8
_NAME = int.from_bytes(b"ft-scrub", "little")
PRESSURE_PATH = tuple(int.from_bytes(part, "little") for part in (b"/proc/pr", b"essure/m", b"emory\0\0\0"))


@state_kernel
def parse_pressure(a: Arena, at: int, nr_bytes: int) -> int:
    """Whole percent of the first `avg10=` in the text that begins at word `at`; 0 if there is none."""
    i = 0
    value, seen = 0, 0  # seen: characters of "avg10="
    while i < nr_bytes:
        c = (a.word[at + (i >> 3)] >> (8 * (i & 7))) & 255
        if seen == 6:
            if c < 48 or c > 57:
                return value
            value = value * 10 + c - 48
        elif c == (97, 118, 103, 49, 48, 61)[seen]:
            seen += 1
        else:
            seen = 1 if c == 97 else 0
        i += 1
    return value


@state_kernel
def _pressure_percent(a: Arena) -> int:
    """Share of the last 10 s that some task of the machine lost for want of memory; 0 where the kernel does not say."""
    a.word[_PATH], a.word[_PATH + 1], a.word[_PATH + 2] = PRESSURE_PATH
    file = _open(word_address(a, _PATH), _O_RDONLY_CLOEXEC)
    if file < 0:
        return 0
    nr_bytes = _read(file, word_address(a, _TEXT), 64)
    _close(file)
    return parse_pressure(a, _TEXT, nr_bytes)


@state_kernel
def in_window(a: Arena, now_s: int) -> bool:
    """Whether a time in seconds since the epoch is in the window of the day."""
    start, end = a.word[WINDOW_START], a.word[WINDOW_END]
    minute = (now_s + a.word[UTC_OFFSET_S]) // 60 % 1440
    if start <= end:
        return bool(start == end or start <= minute < end)
    return bool(minute >= start or minute < end)


@state_kernel
def _load_is_below(a: Arena) -> bool:
    """As scrubd asks: the whole part of the load average of a minute."""
    if _getloadavg(word_address(a, _NUMBER), 1) != 1:
        return True
    bits = a.word[_NUMBER]  # a double
    exponent = ((bits >> 52) & 2047) - 1023
    if exponent < 0:
        return bool(a.word[LOAD] > 0)
    return bool((((bits & ((1 << 52) - 1)) | (1 << 52)) >> (52 - min(exponent, 52))) < a.word[LOAD])


@state_kernel
def settle(a: Arena, may_populate: bool) -> bool:
    """Whether there is something to zero or to populate; the scrubbers of zones without go to sleep."""
    work = False
    for zone in range(a.counts.shape[0]):
        if not a.awake[zone]:
            continue
        if lock(a, zone, 10):
            if not wants_scrub(a, zone, a.word[STOP_ORDER]):
                a.awake[zone] = 0
            unlock(a, zone)
        work = work or bool(a.awake[zone])
    return work or (may_populate and wants_population(a))


@state_kernel
def wants_population(a: Arena) -> bool:
    """Whether less free memory is mapped than is to be ready, and there is more."""
    if free_faulted_pages(a) >= a.word[KEEP_PAGES]:
        return False
    unfaulted = 0
    for zone in range(a.counts.shape[0]):
        unfaulted += int(a.unfaulted.free_pages[zone])
    return unfaulted > 0


@state_kernel
def do_one(a: Arena, may_populate: bool) -> bool:
    """Zero one block, or populate one; False when there was none old enough, or no lock."""
    before_ns = clock_ns() - a.word[AGE_NS]
    for zone in range(a.counts.shape[0]):
        if a.awake[zone] and scrub_one(a, zone, before_ns) == DONE:
            return True
    if may_populate and wants_population(a):
        for zone in range(a.counts.shape[0]):
            if populate_one(a, zone) == DONE:
                return True
    return False


@state_kernel
def nap(a: Arena, nr_us: int) -> bool:
    """Sleep; whether the process was idle meanwhile."""
    start_ns, cpu_ns = clock_ns(), process_cpu_ns()
    sleep_us(nr_us)
    a.word[NR_NAPS] += 1
    idle = bool((process_cpu_ns() - cpu_ns) * 100 < (clock_ns() - start_ns) * a.word[BUSY_PERCENT])
    if not idle:
        a.word[NR_BUSY_NAPS] += 1
    return idle


@state_kernel
def burst(a: Arena, may_populate: bool) -> None:
    """Work at full speed until there is nothing to do, the arena is used, or it is time to look again."""
    used, end_ns = activity(a), clock_ns() + _BURST_NS
    while not load_acquire(word_address(a, STOP)) and clock_ns() < end_ns and activity(a) == used:
        if not do_one(a, may_populate):
            return


@state_kernel
def scrub_loop(a: Arena, ctx: int) -> None:
    """All that the thread does, until it is told to stop."""
    stop, wake = word_address(a, STOP), word_address(a, WAKE)
    used, used_ns, house_ns = activity(a), clock_ns(), 0
    pressed, gate = False, True
    nap_us = int(a.word[NAP_US])
    while not load_acquire(stop):
        seen = load_acquire(wake)
        now_ns = clock_ns()
        if activity(a) != used:
            used, used_ns = activity(a), now_ns
        if now_ns >= house_ns:
            house_ns = now_ns + _HOUSE_NS
            gate = in_window(a, _time(0)) and _load_is_below(a)
            pressed = a.word[PRESSURE_PERCENT] > 0 and _pressure_percent(a) >= a.word[PRESSURE_PERCENT]
            if pressed:
                call_2(a.word[TRIM], ctx, 0)
        held = free_faulted_pages(a) > a.word[KEEP_PAGES]
        decays = held and a.word[DECAY_NS] > 0
        if decays and now_ns - used_ns >= a.word[DECAY_NS]:
            call_2(a.word[TRIM], ctx, a.word[KEEP_PAGES])
            decays = free_faulted_pages(a) > a.word[KEEP_PAGES] + (1 << HUGE_ORDER)
            used_ns = now_ns
        if not gate or not settle(a, not pressed):
            watched = not gate or decays or (held and a.word[PRESSURE_PERCENT] > 0)
            wait_while(wake, seen, _HOUSE_NS if watched else _LONG_NS)
            nap_us = int(a.word[NAP_US])
        elif nap(a, nap_us):
            burst(a, not pressed)
            nap_us = int(a.word[NAP_US])
        elif a.word[PACE_US]:
            for _ in range(max(1, nap_us // a.word[PACE_US])):
                sleep_us(a.word[PACE_US])
                if load_acquire(stop) or not do_one(a, not pressed):
                    break
        else:
            nap_us = min(2 * nap_us, _MAX_NAP_US)


@entry(types.int64(types.int64))
def scrub_main(ctx):  # type: ignore[no-untyped-def]
    """Where the thread begins: no signals for it, the lowest class, a name."""
    a = arena_at(ctx)
    for i in range(16):
        a.word[_TEXT + i] = -1  # every signal
    _pthread_sigmask(_SIG_SETMASK, word_address(a, _TEXT), 0)
    a.word[_NUMBER] = 0  # the priority, which the class has none of
    _sched_setscheduler(0, _SCHED_IDLE, word_address(a, _NUMBER))
    a.word[_PATH], a.word[_PATH + 1] = _NAME, 0
    _prctl(_PR_SET_NAME, word_address(a, _PATH), 0, 0, 0)
    store_release(word_address(a, THREAD), RUNNING)
    scrub_loop(a, ctx)
    store_release(word_address(a, THREAD), NO_THREAD)
    return 0


# What Python calls, holding its lock throughout: a thread that got it meanwhile could wait for ours for ever.


@entry(types.void(types.int64))
def lock_all(ctx):  # type: ignore[no-untyped-def]
    """Before a fork: hold every lock, so that no list is half changed in the child."""
    a = arena_at(ctx)
    store_release(word_address(a, FORKING), 1)
    for zone in range(a.counts.shape[0]):
        while not lock(a, zone, 1000):
            pass


@entry(types.void(types.int64))
def unlock_all(ctx):  # type: ignore[no-untyped-def]
    """After the fork, in the parent."""
    a = arena_at(ctx)
    for zone in range(a.counts.shape[0]):
        unlock(a, zone)
    store_release(word_address(a, FORKING), 0)


@entry(types.void(types.int64))
def after_fork_in_child(ctx):  # type: ignore[no-untyped-def]
    """In the child: no thread; what it had in flight is unzeroed; free memory is dropped, not copied on write."""
    a = arena_at(ctx)
    pfn, k = a.word[FLYING_PFN], a.word[FLYING_ORDER]
    if pfn != NO_PFN:
        zone = zone_of(a.faulted, pfn)
        if a.word[FLYING_FAULTED]:
            land_unzeroed(a, zone, pfn, k)
        else:
            land_unpopulated(a, zone, pfn, k)
        a.word[FLYING_PFN] = NO_PFN
    for zone in range(a.counts.shape[0]):
        unlock(a, zone)
        a.awake[zone] = 0
    store_release(word_address(a, THREAD), NO_THREAD)
    store_release(word_address(a, FORKING), 0)
    call_2(a.word[TRIM], ctx, 0)


@entry(types.void(types.int64))
def open_arena(ctx):  # type: ignore[no-untyped-def]
    """`free_all` for Python."""
    free_all(arena_at(ctx))


@entry(types.void(types.int64))
def start(ctx):  # type: ignore[no-untyped-def]
    """Start the scrubber's thread."""
    start_scrubber(arena_at(ctx), ctx)


@entry(types.int64(types.int64))
def stop(ctx):  # type: ignore[no-untyped-def]
    """End the scrubber's thread, and wait for it a second; whether it has ended. To be called without Python's lock."""
    a = arena_at(ctx)
    thread = word_address(a, THREAD)
    store_release(word_address(a, STOP), 1)
    for _ in range(10_000):
        if load_acquire(thread) == NO_THREAD:
            return 1
        add_shared(word_address(a, WAKE), 1)
        wake_one(word_address(a, WAKE))
        sleep_us(100)
    return 0


@entry(types.int64(types.int64, types.int64))
def trim(ctx, keep_pages):  # type: ignore[no-untyped-def]
    """`trim_to` for Python."""
    return trim_to(arena_at(ctx), keep_pages, HUGE_ORDER)
