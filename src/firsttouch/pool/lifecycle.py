"""Installing the pool and taking it out again: for the whole process, or for one context.

For the process, the functions in NumPy's default handler are replaced: every thread and every array that is made from
then on. For a context, NumPy's own way of setting a handler is used; threads that are started there do not inherit it.

Where the pool cannot be had (platform, NumPy, memory), one line on stderr says why, and the program runs on without.

A pool's state is never freed: arrays, and the functions that free them, may outlive Python itself. Its memory is given
back when the last of its arrays has gone before `uninstall`; otherwise free memory goes back to the kernel then, and
the hook of `free` stays.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from firsttouch.errors import FirsttouchError
from firsttouch.pool import limits
from firsttouch.units import format_bytes, parse_bytes, parse_ns

if TYPE_CHECKING:
    from firsttouch.pool.account import Stats
    from firsttouch.pool.numpy_api import NumpyApi

LEAST_BYTES = 16 << 20  # a smaller pool is not worth having
_REGION_BYTES = 2 << 20
_FRESH_BYTES = 32 << 20  # the most that glibc's threshold for mapping grows to by itself
_THP = "/sys/kernel/mm/transparent_hugepage/enabled"

_processwide: list[Pool] = []  # at most one
_live: list[Pool] = []  # whose locks a fork has to take
_for_ever: list[Any] = []
_forks_hooked: list[bool] = []


class Pool:
    """One arena with its scrubber, installed as a NumPy handler. Made by `install`."""

    def __init__(self, api: NumpyApi, limit_bytes: int, options: Options) -> None:
        from firsttouch._layout import lay_out
        from firsttouch._mapping import MADV_HUGEPAGE, Region
        from firsttouch.pool import code, state

        self._s = state
        self._api = api
        self._previous: Any = None  # the context's handler before ours
        self.processwide = False
        self.limit_bytes = limit_bytes
        self.code = code.load(say)
        self._region = Region(limit_bytes)
        advised = self._region.advise(MADV_HUGEPAGE)
        self.superpages = advised and not _says_never(_THP)
        nr_pages = limit_bytes >> state.PAGE_SHIFT
        nr_zones = max(1, min(options.regions, limit_bytes // _REGION_BYTES))
        step = nr_pages // nr_zones >> 5 << 5  # zones begin at superpages
        zone_pages = [step] * (nr_zones - 1) + [nr_pages - step * (nr_zones - 1)]
        self.arena = state.make_arena(zone_pages, state.NR_WORDS + 8 * nr_zones, self._region.address)
        _, block = lay_out(self.arena)
        self.ctx = int(block.ctypes.data)
        self._function("open_arena", None)(self.ctx)
        self._write_settings(api, options)
        self._ours = type(api.default.allocator)(
            self.ctx, *(self.code[f"pool_{name}"] for name in ("malloc", "calloc", "realloc", "free"))
        )
        self._start = self._function("start", None)
        self._stop = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(self.code["stop"])
        self._trim = self._function("trim", ctypes.c_int64, 2)
        self.lock_all = self._function("lock_all", None)
        self.unlock_all = self._function("unlock_all", None)
        self.after_fork_in_child = self._function("after_fork_in_child", None)
        _keep_for_ever(self, block, *self.arena.faulted, *self.arena.unfaulted)
        _keep_for_ever(*(part for part in self.arena if not isinstance(part, int | tuple)))

    def _function(self, name: str, result: Any, nr_words: int = 1) -> Any:
        """A function of the machine code, called with Python's lock held."""
        return ctypes.PYFUNCTYPE(result, *[ctypes.c_int64] * nr_words)(self.code[name])

    def _write_settings(self, api: NumpyApi, options: Options) -> None:
        from firsttouch.mm.freelists import NO_PFN

        h, word, default = self._s, self.arena.word, api.default.allocator
        l2_bytes, llc_bytes = limits.cache_bytes()
        hot_bytes = min(max(l2_bytes, llc_bytes * 3 // 4), _FRESH_BYTES - 1)  # from there up glibc is never hot
        word[h.BASE], word[h.END] = self._region.address, self._region.address + self._region.nr_bytes
        word[h.THRESHOLD] = options.threshold_bytes or max(2 * l2_bytes, h.PAGE_BYTES)
        word[h.NEXT_CTX] = default.ctx or 0
        word[h.NEXT_MALLOC], word[h.NEXT_CALLOC] = default.malloc, default.calloc
        word[h.NEXT_REALLOC], word[h.NEXT_FREE] = default.realloc, default.free
        word[h.HOT_BYTES], word[h.HOT_NS] = hot_bytes, options.age_ns
        word[h.FRESH_BYTES] = _FRESH_BYTES
        word[h.START_ORDER], word[h.STOP_ORDER] = options.start_order, options.stop_order
        word[h.LARGE_MALLOC], word[h.LARGE_CALLOC] = self.code["large_malloc"], self.code["large_calloc"]
        word[h.LARGE_FREE], word[h.TRIM] = self.code["large_free"], self.code["trim"]
        word[h.SCRUB_MAIN] = self.code["scrub_main"] if options.scrub else 0
        word[h.MAX_FLYING_ORDER] = h.HUGE_ORDER
        word[h.AGE_NS] = options.age_ns
        word[h.NAP_US], word[h.BUSY_PERCENT] = options.nap_us, options.busy_percent
        word[h.PACE_US] = options.pace_us
        word[h.LOAD] = options.load
        word[h.WINDOW_START], word[h.WINDOW_END] = options.window
        word[h.UTC_OFFSET_S] = time.localtime().tm_gmtoff
        word[h.DECAY_NS] = options.decay_ns
        word[h.PRESSURE_PERCENT] = options.pressure_percent
        word[h.KEEP_PAGES] = options.populate_bytes // h.PAGE_BYTES
        word[h.FLYING_PFN] = NO_PFN

    # Installing

    def install(self, processwide: bool) -> None:
        """Serve the process, or this context."""
        self.processwide = processwide
        _live.append(self)
        if processwide:
            to = self._api.default.allocator
            to.ctx = self._ours.ctx  # first: the functions that are there do not look at it
            for name in ("free", "realloc", "malloc", "calloc"):
                setattr(to, name, getattr(self._ours, name))
        else:
            self._previous = self._api.set(self._api.make_capsule(b"firsttouch_pool", self._ours))
        self._start(self.ctx)

    def uninstall(self) -> None:
        """Serve no more. Live arrays stay as they are; memory that is free goes back at once."""
        h, word, to = self._s, self.arena.word, self._api.default.allocator
        if self not in _live:
            return
        self.stop()
        word[h.THRESHOLD] = h.NOTHING
        if self._previous is not None:
            self._api.set(self._previous)
            self._previous = None
        self.trim()
        if self.stats().live_bytes:
            return  # it stays among `_live`, and the hook of free stays
        if self.processwide and to.ctx == self.ctx:
            for name, i in (("calloc", h.NEXT_CALLOC), ("malloc", h.NEXT_MALLOC), ("realloc", h.NEXT_REALLOC)):
                setattr(to, name, int(word[i]))
            to.free, to.ctx = int(word[h.NEXT_FREE]), int(word[h.NEXT_CTX]) or None
        elif self.processwide:
            return  # another handler was put on top of ours, and may call it
        _live.remove(self)
        word[h.BASE] = word[h.END] = 0
        self._region.unmap()

    def stop(self) -> None:
        """End the scrubber."""
        self._stop(self.ctx)

    def trim(self, keep: int | str = 0) -> int:
        """Give free memory back to the kernel, all but `keep` bytes; returns how much. It stays room for arrays."""
        keep_bytes = parse_bytes(keep) if isinstance(keep, str) else keep
        return int(self._trim(self.ctx, keep_bytes // self._s.PAGE_BYTES))

    def stats(self) -> Stats:
        """What the pool did so far."""
        from firsttouch.pool.account import Stats

        a, h = self.arena, self._s
        count = [int(total) for total in a.counts.sum(axis=0)]
        zero_pages, free_pages = int(a.faulted.zero_pages.sum()), int(a.faulted.free_pages.sum())
        return Stats(
            limit_bytes=self.limit_bytes,
            threshold_bytes=int(a.word[h.THRESHOLD]),
            live_bytes=count[h.LIVE_PAGES] * h.PAGE_BYTES,
            peak_bytes=count[h.PEAK_PAGES] * h.PAGE_BYTES,
            free_zeroed_bytes=zero_pages * h.PAGE_BYTES,
            free_unzeroed_bytes=max(0, free_pages - zero_pages) * h.PAGE_BYTES,
            free_unfaulted_bytes=int(a.unfaulted.free_pages.sum()) * h.PAGE_BYTES,
            nr_mallocs=count[h.NR_MALLOCS],
            nr_callocs=count[h.NR_CALLOCS],
            nr_frees=count[h.NR_FREES],
            nr_fallbacks=int(a.word[h.NR_FALLBACKS]),
            hits=count[h.NR_ZERO_HITS],
            hot=count[h.NR_ZERO_HOT],
            misses=count[h.NR_ZERO_MISSES],
            unfaulted=count[h.NR_ZERO_UNFAULTED],
            ahead_bytes=count[h.AHEAD_BYTES],
            zeroed_bytes=count[h.ZEROED_BYTES],
            scrubbed_bytes=count[h.SCRUBBED_BYTES],
            populated_bytes=count[h.POPULATED_BYTES],
            trimmed_bytes=count[h.TRIMMED_BYTES],
            reused_bytes=count[h.REUSED_BYTES],
            nr_wakeups=count[h.NR_WAKEUPS],
            nr_naps=int(a.word[h.NR_NAPS]),
            nr_deferred=count[h.NR_DEFERRED],
            superpages=self.superpages,
        )


class Options:
    """The keywords of `install`, checked and in the units of the arena."""

    def __init__(
        self,
        *,
        populate: int | str = 0,
        threshold: int | str | None = None,
        scrub: bool = True,
        start: int = 9,
        stop: int = 4,
        load: int = 999,
        window: str = "",
        pace: str | None = None,
        nap: str = "12ms",
        busy: float = 0.1,
        age: str = "20ms",
        decay: str | None = "30s",
        pressure: float = 0.1,
        regions: int | None = None,
    ) -> None:
        self.populate_bytes = _bytes(populate)
        self.threshold_bytes = 0 if threshold is None else max(_bytes(threshold), 1 << 16)
        self.scrub = scrub
        self.start_order, self.stop_order = (max(0, order - 4) for order in (start, stop))  # of 64 KiB
        self.load = load
        self.window = _window(window)
        self.pace_us = 0 if pace is None else max(1, parse_ns(pace) // 1000)
        self.nap_us = min(max(10_000, parse_ns(nap) // 1000), 500_000)
        self.busy_percent = _percent("busy", busy)
        self.age_ns = parse_ns(age)
        self.decay_ns = 0 if decay is None else parse_ns(decay)
        self.pressure_percent = _percent("pressure", pressure)
        gil = getattr(sys, "_is_gil_enabled", lambda: True)()
        self.regions = (1 if gil else min(8, os.cpu_count() or 1)) if regions is None else regions
        if not 1 <= self.regions <= 64:
            raise FirsttouchError(f"a pool of {regions} regions", "1 to 64")


def _bytes(size: int | str) -> int:
    return parse_bytes(size) if isinstance(size, str) else int(size)


def _percent(name: str, ratio: float) -> int:
    if not 0 <= ratio <= 1:
        raise FirsttouchError(f"{name} is {ratio}", "it is a share, 0 to 1")
    return round(100 * ratio)


def _window(text: str) -> tuple[int, int]:
    """Minutes of the day of `02:00-04:00`; "" is all day."""
    if not text:
        return 0, 0
    try:
        start, end = (
            60 * int(hour) + int(minute) for hour, _, minute in (part.partition(":") for part in text.split("-"))
        )
    except ValueError:
        raise FirsttouchError(f"{text!r} is not a time of the day", "write it as 02:00-04:00") from None
    if not (0 <= start < 1440 and 0 <= end <= 1440):
        raise FirsttouchError(f"{text!r} is not a time of the day", "write it as 02:00-04:00")
    return start, end % 1440


def _says_never(path: str) -> bool:
    try:
        with open(path) as file:
            return "[never]" in file.read()
    except OSError:
        return True


def _keep_for_ever(*objects: Any) -> None:
    """Not even the end of the interpreter may free these: code that runs later refers to them."""
    _for_ever.extend(objects)
    for each in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def say(text: str) -> None:
    """A line on stderr."""
    print(f"firsttouch pool: {text}", file=sys.stderr, flush=True)


# Forks


def _hook_forks() -> None:
    if not _forks_hooked:
        _forks_hooked.append(True)
        os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


def _before_fork() -> None:
    for pool in _live:
        pool.lock_all(pool.ctx)


def _after_in_parent() -> None:
    for pool in _live:
        pool.unlock_all(pool.ctx)


def _after_in_child() -> None:
    for pool in _live:
        pool.after_fork_in_child(pool.ctx)


# What users call


def install(
    limit: int | str | None = None,
    *,
    context: bool = False,
    report: bool = False,
    strict: bool = False,
    **options: Any,
) -> Pool | None:
    """Put the pool beneath NumPy.

    Parameters
    ----------
    limit
        The most memory that the pool may take: bytes, or "4GiB". At most 80 % of what is available; by default 25 %.
    context
        Only for the current context (see contextvars) instead of every thread of the process.
    report
        Print one line of what it did at exit.
    strict
        Raise where the pool cannot be had. By default one line on stderr says why, and None is returned.
    populate
        Free memory to have mapped and zeroed ahead, "64MiB"; by default none: memory is mapped as the program needs
        it, and then kept.
    threshold
        Smaller arrays are not the pool's; by default twice the L2 cache.
    scrub
        Whether to zero memory in the background.
    start, stop
        As in scrubd: orders of 4 KiB pages. A free block of `start` (9, 2 MiB) wakes the scrubber; it zeroes blocks
        down to `stop` (4, 64 KiB).
    load
        Load average of a minute from which on it does not run; 999, as in scrubd, is none; 0 never lets it run.
    window
        Hours in which it runs, "02:00-04:00"; by default all day.
    pace
        Zero 2 MiB in each such time also while the program is busy, "500us"; by default not at all.
    nap, busy
        It runs when the process used less than the share `busy` (0.1) of one CPU over a `nap` ("12ms").
    age
        Memory freed more recently than this is in the caches, and left alone ("20ms").
    decay
        Give back what was not used for so long ("30s"); None never does.
    pressure
        Give back everything when the machine loses this share of time to want of memory (0.1); 0 never does.
    regions
        Parts with a lock each; by default one, and one a CPU in a free-threaded Python.

    Returns
    -------
    The pool; the one that is installed if there is one; None where it cannot be had.
    """
    try:
        return _install(limit, context, report, Options(**options))
    except FirsttouchError as error:
        if strict:
            raise
        say(f"not installed: {error.message}" + (f" ({error.hint})" if error.hint else ""))
    return None


def _install(limit: int | str | None, context: bool, report: bool, options: Options) -> Pool | None:
    if _processwide and not context:
        say(f"it is installed already, with {format_bytes(_processwide[0].limit_bytes)}; that one stays")
        return _processwide[0]
    limit_bytes = _allowed_bytes(limit)
    options.populate_bytes = min(options.populate_bytes, limit_bytes)
    from firsttouch._code_folder import JIT

    if not JIT:
        raise FirsttouchError("the pool is compiled code, and the JIT is off", "unset FIRSTTOUCH_JIT")
    from firsttouch.pool.numpy_api import NumpyApi

    api = NumpyApi()
    made = Pool(api, limit_bytes, options)
    _hook_forks()
    atexit.register(_at_exit, made, os.getpid() if report else 0)
    made.install(processwide=not context)
    if not context:
        _processwide.append(made)
    return made


def _allowed_bytes(limit: int | str | None) -> int:
    """The limit, as far as there is memory for it."""
    available = limits.available_bytes()
    asked = int(limits.SHARE * available) if limit is None else _bytes(limit)
    most = int(limits.MOST * available)
    granted = min(asked, most) // _REGION_BYTES * _REGION_BYTES
    if granted < LEAST_BYTES:
        raise FirsttouchError(
            f"a pool of {format_bytes(granted)} is too small to be of use ({format_bytes(available)} are available)",
            f"give it {format_bytes(LEAST_BYTES)} or more",
        )
    if asked > most:
        say(f"{format_bytes(asked)} is more than there is; it may take {format_bytes(granted)}")
    return granted


def _at_exit(pool: Pool, reporter: int) -> None:
    pool.stop()
    if reporter == os.getpid():  # and not a forked child
        say(pool.stats().line(_machine()))


def _machine() -> Any:
    """The machine file named by the environment, for the time saved."""
    path = os.environ.get("FIRSTTOUCH_POOL_MACHINE", "")
    if not path:
        return None
    from firsttouch import machine

    try:
        return machine.load(path)
    except (FirsttouchError, OSError):
        return None


def uninstall() -> None:
    """Take the process-wide pool out again, if there is one. Arrays that live in it stay valid."""
    if _processwide:
        _processwide.pop().uninstall()


def installed() -> Pool | None:
    """The process-wide pool."""
    return _processwide[0] if _processwide else None


def stats() -> Stats:
    """What the process-wide pool did. Raises FirsttouchError where there is none."""
    return _need().stats()


def trim(keep: int | str = 0) -> int:
    """Have the process-wide pool give free memory back to the kernel, all but `keep`; returns bytes."""
    return _need().trim(keep)


def _need() -> Pool:
    if not _processwide:
        raise FirsttouchError("no pool is installed", "firsttouch.pool.install()")
    return _processwide[0]


@contextmanager
def pool(limit: int | str | None = None, **options: Any) -> Iterator[Pool | None]:
    """The pool for the time of a `with`; takes what `install` takes."""
    before = installed()
    made = install(limit, **options)
    try:
        yield made
    finally:
        if made is not None and made is not before:
            uninstall() if made is installed() else made.uninstall()


def install_from_environment() -> Pool | None:
    """As FIRSTTOUCH_POOL says: a limit, or 1 for the default one. Nothing, 0: no pool."""
    wanted = os.environ.get("FIRSTTOUCH_POOL", "")
    if wanted in ("", "0"):
        return None
    options: dict[str, Any] = {}
    if populate := os.environ.get("FIRSTTOUCH_POOL_POPULATE", ""):
        options["populate"] = populate
    report = os.environ.get("FIRSTTOUCH_POOL_REPORT", "") not in ("", "0")
    return install(None if wanted == "1" else wanted, report=report, **options)
