"""Recording a program: fork it, open the events, drain the rings, write the trace.

Two threads: the caller's drains the rings (it must never be late, or the kernel drops records), the other assembles
and commits. Between them is a backlog of bounded size; when it is full the rings fill up, and what is lost is counted.
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
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from firsttouch.errors import FirsttouchError, NotHere
from firsttouch.record import perf_event as pe
from firsttouch.record import ring, tracepoints
from firsttouch.record.assemble import Assembler, read_threads
from firsttouch.record.child import AS_PARENT, Child, Conditions
from firsttouch.record.ring import Layout, Ring, Rows, read_chunk
from firsttouch.trace.store import TraceWriter

COMMIT_S = 0.8
COMMIT_ROWS = 100_000  # or as soon as there are so many touches: the log takes these cheaply, see DuckDB row groups
POLL_MS = 200
SETTLE_NS = 2_000_000  # a record may reach its ring this long after its time stamp (an interrupted, or stolen, CPU)
BACKLOG_ROWS = 4_000_000  # some 60 bytes each
POLITE_ROWS = 1_000_000  # up to this backlog the writer leaves the CPUs to the program
POLITE_NICE = 10
ROOT_RING_BYTES = 8 << 20
USER_RING_BYTES = 4 << 20
DEFAULT_FAULT_AROUND_BYTES = 64 << 10

_SAMPLE = pe.SAMPLE_IDENTIFIER | pe.SAMPLE_TID | pe.SAMPLE_TIME | pe.SAMPLE_CPU
_FLAGS = pe.DISABLED | pe.INHERIT | pe.WATERMARK | pe.SAMPLE_ID_ALL | pe.USE_CLOCKID
_ROLES = {
    "exceptions/page_fault_user": ring.ROLE_FAULT_USER,
    "exceptions/page_fault_kernel": ring.ROLE_FAULT_KERNEL,
    "syscalls/sys_enter_munmap": ring.MUNMAP,
    "syscalls/sys_enter_madvise": ring.MADVISE,
    "syscalls/sys_exit_brk": ring.BRK,
    "syscalls/sys_enter_mremap": ring.MREMAP,
    "syscalls/sys_exit_mremap": ring.MREMAP_EXIT,
    "syscalls/sys_enter_mmap": ring.MMAP_CALL,
    "syscalls/sys_exit_mmap": ring.MMAP_EXIT,
    "sched/sched_waking": ring.WAKING,
}


@dataclass(frozen=True)
class Progress:
    """How a recording is getting on."""

    elapsed_s: float
    touches: int
    lost: int


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
    end_ns = time.monotonic_ns()
    session.stop()
    assembler = session.assembler
    exit_status, usage = child.wait(assembler.exec_ns.get(child.pid))
    child.close()
    wall_ns = assembler.exit_ns.get(child.pid, end_ns) - assembler.exec_ns.get(child.pid, assembler.start_ns)
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
            events.enable()
            session.assembler.add_process(pid, session.assembler.start_ns)
            with interrupt_noted() as interrupted:
                session.drain_until(pidfd, seconds=seconds, stop=interrupted)
            wall_ns = time.monotonic_ns() - session.assembler.start_ns
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
        self.layouts: list[Layout] = []
        self._fds: list[int] = []
        self._tids = list(tids)
        self._process = process
        self._flags = _FLAGS | (pe.ENABLE_ON_EXEC if on_exec else 0)
        self._stacks = stacks
        self._ring_bytes = ring_bytes
        self.level, self.why = level, ""
        raise_fd_limit()
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

    def _basic(self) -> list[tuple[pe.Event, int, tuple[int, ...]]]:
        sample = _SAMPLE | pe.SAMPLE_IP | pe.SAMPLE_ADDR | self._chain()
        flags = self._flags | pe.SIDE_BAND | pe.EXCLUDE_KERNEL | pe.EXCLUDE_HV | pe.EXCLUDE_CALLCHAIN_KERNEL
        return [(pe.Event(pe.TYPE_SOFTWARE, pe.SW_PAGE_FAULTS, sample, flags), ring.ROLE_FAULT, ())]

    def _full(self) -> list[tuple[pe.Event, int, tuple[int, ...]]]:
        events = []
        for name, point in tracepoints.read().items():
            role = _ROLES[name]
            sample = _SAMPLE | pe.SAMPLE_RAW
            flags = self._flags
            if role >= ring.ROLE_FAULT:
                sample |= self._chain()
                flags |= pe.EXCLUDE_CALLCHAIN_KERNEL
            if role == ring.ROLE_FAULT_USER:
                flags |= pe.SIDE_BAND
            events.append((pe.Event(pe.TYPE_TRACEPOINT, point.id, sample, flags), role, point.offsets))
        return events

    def _chain(self) -> int:
        return pe.SAMPLE_CALLCHAIN if self._stacks else 0

    def _open(self, events: list[tuple[pe.Event, int, tuple[int, ...]]]) -> None:
        root = os.geteuid() == 0
        size = self._ring_bytes or (ROOT_RING_BYTES if root else USER_RING_BYTES)
        cpus = online_cpus()
        smallest = min(size, 16 * os.sysconf("SC_PAGESIZE"))
        while not self._open_cpus(events, cpus, size):
            size //= 2
            if size < smallest:
                raise NotHere(
                    f"cannot pin {smallest >> 10} KiB per CPU for the rings: perf_event_mlock_kb is too small",
                    "try: sudo sysctl kernel.perf_event_mlock_kb=2048",
                )

    def _open_cpus(self, events: list[tuple[pe.Event, int, tuple[int, ...]]], cpus: list[int], size: int) -> bool:
        """Open everything with rings of `size` bytes; False (and nothing is open) if they may not be pinned."""
        for cpu in cpus:
            owner = -1
            ids, roles, samples = [], [], []
            offsets = []
            for tid in self._tids:
                for event, role, fields in events:
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
                        except (PermissionError, MemoryError, OSError):
                            self.close()
                            return False
                    else:
                        fcntl.ioctl(fd, pe.IOC_SET_OUTPUT, owner)
                    ids.append(pe.event_id(fd))
                    roles.append(role)
                    samples.append(event.sample_type)
                    offsets.append([*fields, *[-1] * (ring.NR_ARGS - len(fields))])
            self.layouts.append(
                Layout(
                    np.array(ids, np.uint64), np.array(roles, np.int32), np.array(samples, np.int64),
                    np.array(offsets, np.int32).reshape(-1, ring.NR_ARGS),
                )
            )  # fmt: skip
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
        self.rings, self.layouts, self._fds = [], [], []

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class _Backlog:
    """What the draining thread hands to the writing one."""

    ready: threading.Condition = field(default_factory=threading.Condition)
    batches: list[tuple[int, list[Rows]]] = field(default_factory=list)  # (everything up to this time is there, rows)
    nr_rows: int = 0
    ended: bool = False
    yielded: bool = False  # the writer has returned because it was too slow


class Session:
    """One recording under way: `start`, `drain_until`, `stop`, `finish`, in this order."""

    def __init__(
        self, events: Events, writer: TraceWriter, *, stacks: bool, progress: Callable[[Progress], None] | None
    ) -> None:
        self.events = events
        self.writer = writer
        self.assembler = Assembler(time.monotonic_ns(), os.sysconf("SC_PAGESIZE"), stacks=stacks)
        self.error: BaseException | None = None
        self._lost_records = 0
        self._skipped = 0
        self._progress = progress
        self._backlog = _Backlog()
        self._thread = threading.Thread(target=self._write, args=(POLITE_NICE,), name="firsttouch-writer", daemon=True)
        read_chunk(np.empty(0, np.uint32), events.layouts[0])  # compile before the program runs

    @property
    def lost(self) -> int:
        """Records lost so far."""
        return max(self._lost_records, self.events.lost() or 0)

    def describe(
        self, *, command: list[str], as_is: bool, base_pages: bool, facts: dict[str, Any], **more: Any
    ) -> None:
        """What is known before the program runs; `start` commits it, so that a killed recording has it."""
        around = facts.get("fault_around_bytes")
        self.writer.meta(
            command=command, level=self.events.level, level_why=self.events.why, as_is=as_is, base_pages=base_pages,
            fault_around_bytes=around or DEFAULT_FAULT_AROUND_BYTES, page_bytes=self.assembler.page_bytes, host=facts,
            lost=0, wall_ns=None, user_ns=None,
            system_ns=None, minflt=None, majflt=None, exit=None, unseen=None, threads=None, descendants_left=None,
            **more,
        )  # fmt: skip

    def start(self) -> None:
        """Start the writing thread; times count from here."""
        self.assembler.start_ns = time.monotonic_ns()
        self.writer.meta(start_monotonic_ns=self.assembler.start_ns, start_unix_s=time.time())
        self.writer.commit({})
        self._thread.start()

    def drain_until(self, pidfd: int, *, seconds: float = float("inf"), stop: threading.Event | None = None) -> None:
        """Drain the rings until the process ends, the time is up, or `stop` is set."""
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        for one in self.events.rings:
            poll.register(one.fd, select.POLLIN)
        begin = time.monotonic()
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
            if self._progress is not None:
                self._progress(Progress(time.monotonic() - begin, self.assembler.nr_touches, self._lost_records))
            if ended:
                return

    def stop(self) -> None:
        """Record no more; assemble what is left."""
        self.events.disable()
        self._drain(last=True)
        self._thread.join()
        if self._backlog.yielded:
            self._write(0)

    def finish(self, **meta: Any) -> None:
        """Write the end of the trace. Raises what went wrong in the writing thread."""
        if self.error is not None:
            self._give_up()
            raise self.error
        try:
            self.writer.meta(lost=self.lost, skipped=self._skipped, threads=len(self.assembler.threads), **meta)
            self.writer.commit(self.assembler.take_symbols())
            self.writer.close()
        except FirsttouchError:
            self._give_up()
            raise

    def abandon(self) -> None:
        """Nothing was recorded: leave no trace behind."""
        if self._thread.is_alive():
            with self._backlog.ready:
                self._backlog.ended = True
                self._backlog.ready.notify()
            self._thread.join()
        self._give_up()
        for path in (self.writer.path, self.writer.path.with_name(self.writer.path.name + ".wal")):
            path.unlink(missing_ok=True)

    def _give_up(self) -> None:
        """Close the file as it is."""
        self.writer.__exit__(FirsttouchError, None, None)

    def _drain(self, last: bool = False) -> None:
        """Look at each ring once and hand over what is there."""
        backlog = self._backlog
        if self.error is not None:
            return  # the disk is full, or the like: the program goes on, unrecorded
        if backlog.nr_rows > BACKLOG_ROWS and not last:
            return
        now_ns = time.monotonic_ns()
        rows = []
        for one, layout in zip(self.events.rings, self.events.layouts, strict=True):
            chunk = read_chunk(one.take(), layout)
            self._lost_records += chunk.lost
            self._skipped += chunk.skipped
            rows.append(self.assembler.take_chunk(chunk))
        with backlog.ready:
            backlog.batches.append((now_ns - SETTLE_NS, rows))
            backlog.nr_rows += sum(len(part.t_ns) for part in rows)
            backlog.ended = last
            backlog.ready.notify()
        if backlog.yielded:  # a thread cannot take its niceness back: another one goes on, as urgent as this one
            backlog.yielded = False
            self._thread.join()
            self._thread = threading.Thread(target=self._write, args=(0,), name="firsttouch-writer", daemon=True)
            self._thread.start()

    def _write(self, nice: int) -> None:
        """The writing thread: assemble what comes, commit about once a second; gives way to a less nice one."""
        backlog = self._backlog
        if nice:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
        due = time.monotonic() + COMMIT_S
        try:
            while True:
                with backlog.ready:
                    if not backlog.batches and not backlog.ended:
                        backlog.ready.wait(max(0.01, due - time.monotonic()))
                    batches, backlog.batches = backlog.batches, []
                    ended = backlog.ended
                if batches:
                    rows = [part for _, parts in batches for part in parts]
                    self.assembler.flush(rows, batches[-1][0])
                    backlog.nr_rows -= sum(len(part.t_ns) for part in rows)
                if ended:
                    self.assembler.flush([])
                if ended or time.monotonic() >= due or self.assembler.nr_pending >= COMMIT_ROWS:
                    chunks = self.assembler.take()
                    if chunks:
                        self.writer.meta(lost=self._lost_records)
                        self.writer.commit(chunks)
                    due = time.monotonic() + COMMIT_S
                if ended:
                    return
                if nice and backlog.nr_rows > POLITE_ROWS:
                    backlog.yielded = True
                    return
        except BaseException as error:
            self.error = error
            self.events.disable()


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


def process_usage(pid: int) -> tuple[int, int, int, int]:
    """minflt, majflt, user_ns, system_ns of a running process, all its threads; zeros if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0, 0, 0
    tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
    return int(fields[7]), int(fields[9]), int(fields[11]) * tick_ns, int(fields[12]) * tick_ns


def process_command(pid: int) -> list[str]:
    """The words of a running process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def has_thp_off(pid: int) -> bool:
    """Whether a running process has transparent huge pages off."""
    try:
        return "THP_enabled:\t0" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


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
