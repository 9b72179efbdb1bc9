"""Recording a program: fork it, open the events, drain the rings, write the trace.

Two threads: the caller's writes what is in the rings to the raw file beside the trace (it must never be late, or the
kernel drops records), the other folds that into the trace, but only while a CPU is idle: a program that uses every CPU
pays for its records and for one write of them, and for the tables after it has ended.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from firsttouch.errors import FirsttouchError, NotHere
from firsttouch.record import perf_event as pe
from firsttouch.record import tracepoints
from firsttouch.record.child import AS_PARENT, Child, Conditions
from firsttouch.record.clock import Clock
from firsttouch.record.idle import IdleWatch
from firsttouch.record.ring import CannotPin, Ring
from firsttouch.record.running import has_thp_off, process_command, process_usage, read_process, read_threads
from firsttouch.trace import decode
from firsttouch.trace.assemble import Assembler
from firsttouch.trace.fold import Folder, warm_up
from firsttouch.trace.raw import NR_ARGS, Header, RawReader, RawWriter, RingFormat, raw_path
from firsttouch.trace.store import TraceWriter, wal_path

POLL_MS = 200
SETTLE_NS = 2_000_000  # a record may reach its ring this long after its time stamp (an interrupted, or stolen, CPU)
POLITE_NICE = 10
ROOT_RING_BYTES = 8 << 20
USER_RING_BYTES = 4 << 20
DEFAULT_FAULT_AROUND_BYTES = 64 << 10

_UNLIMITED_STACK_BYTES = 1 << 30
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # its inode number, PROC_PID_INIT_INO
_FLAGS = pe.DISABLED | pe.INHERIT | pe.WATERMARK | pe.SAMPLE_ID_ALL
_SIDE_BAND = pe.Event(
    pe.TYPE_SOFTWARE, pe.SW_DUMMY, pe.SAMPLE_TID | pe.SAMPLE_TIME, pe.SIDE_BAND | pe.EXCLUDE_KERNEL | pe.EXCLUDE_HV
)
_ROLES = {
    "exceptions/page_fault_user": decode.ROLE_FAULT_USER,
    "exceptions/page_fault_kernel": decode.ROLE_FAULT_KERNEL,
    "syscalls/sys_enter_munmap": decode.MUNMAP,
    "syscalls/sys_enter_madvise": decode.MADVISE,
    "syscalls/sys_exit_brk": decode.BRK,
    "syscalls/sys_enter_mremap": decode.MREMAP,
    "syscalls/sys_exit_mremap": decode.MREMAP_EXIT,
    "syscalls/sys_enter_mmap": decode.MMAP_CALL,
    "syscalls/sys_exit_mmap": decode.MMAP_EXIT,
    "sched/sched_waking": decode.WAKING,
}


@dataclass(frozen=True)
class Progress:
    """How a recording is getting on."""

    elapsed_s: float
    nr_bytes: int  # records so far
    behind_bytes: int  # of these not in the tables yet
    lost: int
    ended: bool = False  # the program has; what is behind is folded in now


@dataclass(frozen=True)
class Recording:
    """What came of a recording."""

    path: Path
    exit_status: int  # as a shell shows it: 128 + signal; 0 for an attached process
    touches: int
    lost: int  # records that found a ring full
    level: str  # "basic" or "full"
    why: str  # why not "full", or ""
    minflt: int  # the kernel's own count for the program and the children it waited for
    majflt: int
    unseen: int  # faults that it counted and this recording does not have
    wall_ns: int


def record(
    command: Sequence[str],
    path: Path | str,
    *,
    level: str = "auto",
    stacks: bool = False,
    as_is: bool = False,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
    ring_bytes: int | None = None,
    conditions: Conditions = AS_PARENT,
) -> Recording:
    """Run `command` and record its first touches, and those of its descendants, until it ends.

    Parameters
    ----------
    command
        Program and arguments; its input, output and signals are its own.
    path
        The trace to write.
    level
        "basic" (user-mode faults), "full" (all faults, and what is unmapped; needs root), "auto" (the best allowed).
    stacks
        Record user call chains.
    as_is
        Leave transparent huge pages as they are; otherwise they are off for the program, so that each base page's
        first touch is seen.
    force
        Replace an existing trace.
    progress
        Called some times a second.
    ring_bytes
        Size of each CPU's ring, a power of two of pages; the default depends on what this user may pin.
    conditions
        What the program runs under: environment, folder, output, and whether its addresses are randomised.

    Raises
    ------
    FirsttouchError
        The program cannot run, the trace cannot be written, or (then what was committed stays) the disk is full.
    NotHere
        The kernel does not let this user record.
    """
    check_target(Path(path), force)
    if not command:
        raise FirsttouchError("there is no command to record", "firsttouch record -o FILE -- COMMAND [ARGUMENTS]")
    child = Child(command, thp_disable=not as_is, conditions=conditions)
    started = False
    try:
        with Events([child.pid], level, stacks=stacks, on_exec=True, ring_bytes=ring_bytes) as events:
            facts = host_facts()
            with signals_passed_on(child.pid):
                writer = TraceWriter(path, force=force)
                session = Session(events, writer, stacks=stacks, progress=progress)
                session.describe(
                    command=list(command), as_is=as_is, base_pages=not as_is, facts=facts,
                    fixed_addresses=conditions.fixed_addresses,
                )  # fmt: skip
                try:
                    session.start()
                    child.go()
                    started = True
                except BaseException:
                    session.abandon()
                    raise
                return _run(session, child)
    except BaseException:
        if not started:
            child.abandon()
        raise


def _run(session: Session, child: Child) -> Recording:
    """From exec to the end of the program and of the trace."""
    session.drain_until(child.pidfd)
    end_ns = session.events.clock.now_ns()
    session.stop()
    assembler = session.assembler
    exec_ns = assembler.exec_ns.get(child.pid)
    exit_status, usage = child.wait(exec_ns and exec_ns + session.events.clock.monotonic_offset_ns)
    child.close()
    wall_ns = assembler.exit_ns.get(child.pid, end_ns) - (exec_ns or assembler.start_ns)
    unseen = max(0, usage.minflt + usage.majflt - assembler.nr_touches)
    session.finish(
        wall_ns=wall_ns,
        user_ns=usage.user_ns,
        system_ns=usage.system_ns,
        minflt=usage.minflt,
        majflt=usage.majflt,
        exit=exit_status,
        unseen=unseen,
        descendants_left=len([pid for pid in assembler.alive if pid != child.pid]),
    )
    return Recording(
        session.writer.path, exit_status, assembler.nr_touches, session.lost, session.events.level,
        session.events.why, usage.minflt, usage.majflt, unseen, wall_ns,
    )  # fmt: skip


def attach(
    pid: int,
    seconds: float,
    path: Path | str,
    *,
    level: str = "auto",
    stacks: bool = False,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Recording:
    """Record a process that runs already, for some seconds or until it ends; it goes on undisturbed.

    Parameters are those of `record`. Pages that were touched before are not in the trace, and transparent huge pages
    stay as the process has them.
    """
    check_target(Path(path), force)
    tids = [tid for tid, _ in read_threads(pid)]
    if not tids:
        raise FirsttouchError(f"cannot attach to pid {pid}: No such process", "see what runs: ps -e")
    before = process_usage(pid)
    with Events(tids, level, stacks=stacks, on_exec=False, process=pid) as events:
        writer = TraceWriter(path, force=force)
        session = Session(events, writer, stacks=stacks, progress=progress)
        session.describe(
            command=process_command(pid), as_is=True, base_pages=has_thp_off(pid), facts=host_facts(), attached=pid
        )
        pidfd = os.pidfd_open(pid)
        try:
            session.start()
            session.add_process(pid)
            events.enable()
            session.add_process(pid)  # what changed in between: /proc shows it, or an event does, or both
            with interrupt_noted() as interrupted:
                session.drain_until(pidfd, seconds=seconds, stop=interrupted)
            wall_ns = events.clock.now_ns() - session.start_ns
            after = process_usage(pid) or before
            session.stop()
        except BaseException:
            session.abandon()
            raise
        finally:
            os.close(pidfd)
        minflt, majflt, user_ns, system_ns = (now - then for now, then in zip(after, before, strict=True))
        unseen = max(0, minflt + majflt - session.assembler.nr_touches)
        session.finish(
            wall_ns=wall_ns, user_ns=user_ns, system_ns=system_ns, minflt=minflt, majflt=majflt, exit=0,
            unseen=unseen, descendants_left=max(0, len(session.assembler.alive) - 1),
        )  # fmt: skip
        return Recording(
            writer.path, 0, session.assembler.nr_touches, session.lost, events.level, events.why, minflt, majflt,
            unseen, wall_ns,
        )  # fmt: skip


class Events:
    """The open events of a recording: on each CPU, one ring that all events of that CPU write to."""

    def __init__(
        self,
        tids: Sequence[int],
        level: str,
        *,
        stacks: bool,
        on_exec: bool,
        process: int | None = None,
        ring_bytes: int | None = None,
    ) -> None:
        if level not in ("auto", "basic", "full"):
            raise FirsttouchError(f"there is no level {level!r}", "levels are auto, basic and full")
        self.rings: list[Ring] = []
        self.formats: list[RingFormat] = []
        self._fds: list[int] = []
        self._tids = list(tids)
        self._process = process
        self._flags = _FLAGS | (pe.ENABLE_ON_EXEC if on_exec else 0)
        self._stacks = stacks
        self._ring_bytes = ring_bytes
        self.level, self.why = level, ""
        raise_fd_limit()
        try:
            self.clock = Clock()
        except CannotPin:
            raise _cannot_pin(os.sysconf("SC_PAGESIZE")) from None
        except OSError as error:
            raise pe.refusal(error, "the clock of perf events", process) from None
        try:
            self._open_best()
        except BaseException:
            self.clock.close()
            raise

    def _open_best(self) -> None:
        """Open the events of the level, or of the best that is allowed."""
        level, process = self.level, self._process
        if level != "basic":
            try:
                self._open(self._full())
                self.level = "full"
                return
            except FirsttouchError as error:
                self.close()
                if level == "full":
                    raise
                self.why = error.message
            except OSError as error:
                self.close()
                refused = pe.refusal(error, "the page-fault tracepoints")
                if level == "full":
                    raise NotHere(refused.message, "run as root, or record with --level basic") from None
                self.why = f"{refused.message}; root may"
        self.level = "basic"
        try:
            self._open(self._basic())
        except OSError as error:
            self.close()
            of = f" for pid {process}" if process else ""
            raise pe.refusal(error, f"the page-faults event{of}", process) from None

    def _basic(self) -> list[tuple[pe.Event, int, int, tuple[int, ...]]]:
        sample = pe.SAMPLE_TID | pe.SAMPLE_TIME | pe.SAMPLE_IP | pe.SAMPLE_ADDR | self._chain()
        flags = self._flags | pe.EXCLUDE_KERNEL | pe.EXCLUDE_HV | pe.EXCLUDE_CALLCHAIN_KERNEL
        return [(pe.Event(pe.TYPE_SOFTWARE, pe.SW_PAGE_FAULTS, sample, flags), 0, decode.ROLE_FAULT, ())]

    def _full(self) -> list[tuple[pe.Event, int, int, tuple[int, ...]]]:
        """All tracepoints; their samples hold the same fields, so that nothing need say which event one is of.

        Their raw data names the thread as the initial pid namespace does, which saves looking up pid and tid.
        """
        points = tracepoints.read()
        named = all(point.names_thread for point in points.values())
        initial = os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
        ids = 0 if named and initial else pe.SAMPLE_TID
        sample = ids | pe.SAMPLE_TIME | pe.SAMPLE_RAW | self._chain()
        flags = self._flags | pe.EXCLUDE_CALLCHAIN_KERNEL
        return [
            (pe.Event(pe.TYPE_TRACEPOINT, point.id, sample, flags), point.id, _ROLES[name], point.offsets)
            for name, point in points.items()
        ]

    def _chain(self) -> int:
        return pe.SAMPLE_CALLCHAIN if self._stacks else 0

    def _open(self, events: list[tuple[pe.Event, int, int, tuple[int, ...]]]) -> None:
        root = os.geteuid() == 0
        size = self._ring_bytes or (ROOT_RING_BYTES if root else USER_RING_BYTES)
        cpus = online_cpus()
        smallest = min(size, 16 * os.sysconf("SC_PAGESIZE"))
        while not self._open_cpus(events, cpus, size):
            size //= 2
            if size < smallest:
                raise _cannot_pin(smallest)

    def _open_cpus(self, events: list[tuple[pe.Event, int, int, tuple[int, ...]]], cpus: list[int], size: int) -> bool:
        """Open everything with rings of `size` bytes; False (and nothing is open) if they may not be pinned."""
        side_band = replace(_SIDE_BAND, flags=_SIDE_BAND.flags | self._flags)
        for cpu in cpus:
            owner = -1
            for tid in self._tids:
                for event in (side_band, *(event for event, _, _, _ in events)):
                    try:
                        fd = pe.open_event(event, tid, cpu, size // 4)
                    except ProcessLookupError:
                        if self._process and tid != self._process:
                            break  # a thread that has ended since
                        raise
                    self._fds.append(fd)
                    if owner < 0:
                        owner = fd
                        try:
                            self.rings.append(Ring(fd, size))
                        except CannotPin:
                            self.close()
                            return False
                    else:
                        fcntl.ioctl(fd, pe.IOC_SET_OUTPUT, owner)
            self.formats.append(
                RingFormat(
                    cpu=cpu,
                    sample_type=events[0][0].sample_type,
                    points=[point for _, point, _, _ in events],
                    roles=[role for _, _, role, _ in events],
                    offsets=[[*fields, *[-1] * (NR_ARGS - len(fields))] for _, _, _, fields in events],
                )
            )
        return True

    def enable(self) -> None:
        """Begin to record (an attached process; a new program does so at exec)."""
        for fd in self._fds:
            fcntl.ioctl(fd, pe.IOC_ENABLE, 0)

    def disable(self) -> None:
        """Record no more, in descendants neither."""
        for fd in self._fds:
            fcntl.ioctl(fd, pe.IOC_DISABLE, 0)

    def lost(self) -> int | None:
        """Records lost so far by the kernel's own count; None before Linux 6.0."""
        counts = [pe.lost_records(fd) for fd in self._fds]
        return None if None in counts else sum(count for count in counts if count is not None)

    def close(self) -> None:
        """Unmap the rings and close the events."""
        for one in self.rings:
            one.close()
        for fd in self._fds:
            os.close(fd)
        self.rings, self.formats, self._fds = [], [], []

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.clock.close()


class Session:
    """One recording under way: `start`, `drain_until`, `stop`, `finish`, in this order."""

    def __init__(
        self, events: Events, writer: TraceWriter, *, stacks: bool, progress: Callable[[Progress], None] | None
    ) -> None:
        self.events = events
        self.writer = writer
        self.error: BaseException | None = None
        self._header = Header(
            start_ns=0, page_bytes=os.sysconf("SC_PAGESIZE"), stack_bytes=stack_limit_bytes(), stacks=stacks,
            rings=events.formats,
        )  # fmt: skip
        self._progress = progress
        self._idle = IdleWatch()
        self._begin_s = time.monotonic()
        self._more = threading.Condition()  # there is more in the raw file, or there never will be
        self._ended = False
        self._thread = threading.Thread(target=self._fold, name="firsttouch-writer", daemon=True)
        warm_up(events.formats[0])  # before the program runs

    @property
    def start_ns(self) -> int:
        """When times began to count, on the clock of perf events."""
        return self._header.start_ns

    @property
    def assembler(self) -> Assembler:
        """What is known of the program so far; all of it after `stop`."""
        return self._folder.assembler

    @property
    def lost(self) -> int:
        """Records lost so far."""
        return max(self._folder.lost, self.events.lost() or 0)

    def describe(
        self, *, command: list[str], as_is: bool, base_pages: bool, facts: dict[str, Any], **more: Any
    ) -> None:
        """What is known before the program runs; `start` commits it, so that a killed recording has it."""
        around = facts.get("fault_around_bytes")
        self.writer.meta(
            command=command, level=self.events.level, level_why=self.events.why, as_is=as_is, base_pages=base_pages,
            fault_around_bytes=around or DEFAULT_FAULT_AROUND_BYTES, page_bytes=self._header.page_bytes, host=facts,
            lost=0, wall_ns=None, user_ns=None,
            system_ns=None, minflt=None, majflt=None, exit=None, unseen=None, threads=None, descendants_left=None,
            **more,
        )  # fmt: skip

    def start(self) -> None:
        """Start the writing thread; times count from here."""
        self._header = msgspec.structs.replace(self._header, start_ns=self.events.clock.now_ns())
        self.writer.meta(start_monotonic_ns=time.monotonic_ns(), start_unix_s=time.time())
        self.writer.commit({})
        self._raw = RawWriter(raw_path(self.writer.path), self._header)
        self._reader = RawReader(self._raw.path)
        self._folder = Folder(self._reader, self.writer)
        self._thread.start()

    def add_process(self, pid: int) -> None:
        """Note what /proc says of a process that runs already."""
        self._raw.process(self.events.clock.now_ns(), read_process(pid))

    def drain_until(self, pidfd: int, *, seconds: float = float("inf"), stop: threading.Event | None = None) -> None:
        """Drain the rings until the process ends, the time is up, or `stop` is set."""
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        for one in self.events.rings:
            poll.register(one.fd, select.POLLIN)
        begin = self._begin_s = time.monotonic()
        while True:
            left_ms = (begin + seconds - time.monotonic()) * 1000
            if left_ms <= 0 or (stop is not None and stop.is_set()):
                return
            ended = False
            for fd, what in poll.poll(max(1, min(POLL_MS, left_ms))):
                if fd == pidfd:
                    ended = True
                elif what & (select.POLLHUP | select.POLLERR):
                    poll.unregister(fd)
            self._drain()
            self._tell()
            if ended:
                return

    def _tell(self, *, ended: bool = False) -> None:
        if self._progress is not None:
            nr_bytes = self._raw.nr_bytes
            behind = nr_bytes - self._reader.at
            self._progress(Progress(time.monotonic() - self._begin_s, nr_bytes, behind, self._folder.lost, ended))

    def stop(self) -> None:
        """Record no more; fold in what is left."""
        self.events.disable()
        self._drain()
        self._tell(ended=True)
        with self._more:
            self._ended = True
            self._more.notify()
        self._thread.join()

    def finish(self, **meta: Any) -> None:
        """Write the end of the trace. Raises what went wrong in the writing thread."""
        try:
            if self.error is not None:
                raise self.error
            self.writer.meta(lost=self.lost, skipped=self._folder.skipped, threads=len(self.assembler.threads), **meta)
            self.writer.close()
            self._raw.remove()
        except BaseException:
            self.writer.leave()
            raise
        finally:
            self._reader.close()
            self._raw.close()

    def abandon(self) -> None:
        """Nothing was recorded: leave no trace behind."""
        if self._thread.is_alive():
            with self._more:
                self._ended = True
                self._more.notify()
            self._thread.join()
        self.writer.leave()
        for path in (self.writer.path, wal_path(self.writer.path), raw_path(self.writer.path)):
            path.unlink(missing_ok=True)

    def _drain(self) -> None:
        """Look at each ring once and write down what is there."""
        if self.error is not None:
            return  # the disk is full, or the like: the program goes on, unrecorded
        now_ns = self.events.clock.now_ns()
        found = [one.waiting() for one in self.events.rings]
        if any(pieces for pieces, _ in found):
            try:
                self._raw.look(now_ns - SETTLE_NS, [pieces for pieces, _ in found])
            except FirsttouchError as error:
                self._fail(error.with_traceback(None))  # whose frames hold pieces of the rings
                return
            for one, (_, end) in zip(self.events.rings, found, strict=True):
                one.free(end)
        if self._idle.has_idle_cpu():
            with self._more:
                self._more.notify()

    def _fail(self, error: BaseException) -> None:
        self.error = error
        self.events.disable()

    def _fold(self) -> None:
        """The writing thread: fold in what is there whenever a CPU is idle, and all of it at the end."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), POLITE_NICE)
        try:
            while not self._ended:
                with self._more:
                    if not self._ended:
                        self._more.wait()
                while not self._ended and self._idle.idle and self._folder.step():
                    pass
            if self.error is None:
                self._folder.finish()
        except BaseException as error:
            self._fail(error)


def _cannot_pin(nr_bytes: int) -> NotHere:
    return NotHere(
        f"cannot pin {nr_bytes >> 10} KiB per CPU for the rings: perf_event_mlock_kb is too small",
        "try: sudo sysctl kernel.perf_event_mlock_kb=2048",
    )


def check_target(path: Path, force: bool) -> None:
    """Refuse, before anything runs, a trace that exists or a folder that cannot be written."""
    if path.exists() and not force:
        raise FirsttouchError(f"{path} exists already", "use --force to replace it, or -o to name another file")
    if not os.access(path.parent, os.W_OK):
        raise FirsttouchError(
            f"cannot write {path}: no such folder, or it is not yours", "name a folder that exists and is yours"
        )


def online_cpus() -> list[int]:
    """Numbers of the CPUs that are online."""
    cpus: list[int] = []
    for part in Path("/sys/devices/system/cpu/online").read_text().strip().split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def stack_limit_bytes() -> int:
    """How far a main stack may grow."""
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return limit if limit != resource.RLIM_INFINITY else _UNLIMITED_STACK_BYTES


def raise_fd_limit() -> None:
    """As many open files as this user may have: one is needed per thread, CPU and event."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def signals_passed_on(pid: int) -> Iterator[None]:
    """While the program runs: ignore what the terminal sends to it too, forward what was sent to the recorder."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    before |= {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


@contextmanager
def interrupt_noted() -> Iterator[threading.Event]:
    """While attached: Ctrl-C and SIGTERM end the recording, in order."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def host_facts() -> dict[str, Any]:
    """Facts of this machine for `meta.host`."""
    try:
        from firsttouch.host.probe import facts
    except ImportError:
        uname = os.uname()
        return {"kernel": uname.release, "nr_cpus": os.cpu_count()}
    import msgspec

    built: dict[str, Any] = msgspec.to_builtins(facts())
    return built
