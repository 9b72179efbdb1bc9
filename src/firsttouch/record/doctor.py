"""What this machine lets one record, calibrate and verify; each "no" with its reason and what would change it."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path

import msgspec

from firsttouch.errors import FirsttouchError
from firsttouch.host.probe import HostFacts, facts
from firsttouch.record import perf_event as pe
from firsttouch.record import tracepoints
from firsttouch.units import format_bytes

THP = Path("/sys/kernel/mm/transparent_hugepage")
WANTED_RING_BYTES = 1 << 20  # per CPU: some 10,000 faults


class Finding(msgspec.Struct, frozen=True):
    """One thing looked at."""

    name: str
    ok: bool
    value: str
    why: str  # what a "no" means, or keeps one from
    fix: str  # the command that would change it, or ""


def examine() -> list[Finding]:
    """Look at everything. Changes nothing, and needs no privilege."""
    host = facts()
    full = record_full()
    return [
        record_basic(),
        full,
        tracefs(full.ok),
        paranoid(),
        locked_memory(),
        seccomp(),
        counters(host),
        thp(host),
        mthp(host),
        calibrate(host),
        verify(),
        guest_memory(host),
        *versions(),
    ]


def record_basic() -> Finding:
    """Whether the page-faults event opens, for this process itself."""
    event = pe.Event(pe.TYPE_SOFTWARE, pe.SW_PAGE_FAULTS, pe.SAMPLE_TIME, pe.DISABLED | pe.EXCLUDE_KERNEL)
    try:
        os.close(pe.open_event(event, 0, -1))
    except OSError as error:
        refused = pe.refusal(error, "the page-faults event")
        return Finding("record basic", False, "no", refused.message, refused.hint.removeprefix("try: "))
    return Finding("record basic", True, "yes: faults taken in user mode", "", "")


def record_full() -> Finding:
    """Whether a tracepoint with its raw data opens, as level full needs."""
    name = "record full"
    try:
        point = tracepoints.read()["exceptions/page_fault_user"]
        sample = pe.SAMPLE_TIME | pe.SAMPLE_RAW
        os.close(pe.open_event(pe.Event(pe.TYPE_TRACEPOINT, point.id, sample, pe.DISABLED), 0, -1))
    except FirsttouchError as error:
        return Finding(name, False, "no", error.message, "sudo firsttouch record ...")
    except OSError as error:
        return Finding(name, False, "no", pe.refusal(error, "the tracepoints").message, "sudo firsttouch record ...")
    return Finding(name, True, "yes: all faults with their access, and what is unmapped", "", "")


def tracefs(can_record_full: bool) -> Finding:
    """Where tracepoints are described; root does without the mount."""
    point = tracepoints.mounted()
    if point:
        return Finding("tracefs", True, f"mounted on {point}", "", "")
    if can_record_full:
        return Finding("tracefs", True, "not mounted; read in a mount namespace of our own", "", "")
    why = "tracefs is not mounted, or not readable for this user: no tracepoints, so no level full"
    return Finding("tracefs", False, "not readable", why, "sudo mount -t tracefs nodev /sys/kernel/tracing")


def paranoid() -> Finding:
    """perf_event_paranoid, which decides what an ordinary user may open."""
    name, level = "perf_event_paranoid", pe.paranoid()
    if level is None:
        return Finding(name, False, "absent", "this kernel, or container, has no perf events", "")
    if level > 2:
        return Finding(
            name, False, str(level), "ordinary users may not record", "sudo sysctl kernel.perf_event_paranoid=2"
        )
    return Finding(name, True, str(level), "", "")


def locked_memory() -> Finding:
    """How much ring memory an ordinary user may pin."""
    name = "perf_event_mlock_kb"
    if pe.paranoid() is None:
        return Finding(name, False, "absent", "this kernel, or container, has no perf events", "")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    extra = "unlimited" if limit == resource.RLIM_INFINITY else format_bytes(limit)
    value = f"{format_bytes(pe.mlock_bytes())} per CPU, and RLIMIT_MEMLOCK {extra}"
    shared = 1 << 62 if limit == resource.RLIM_INFINITY else limit // (os.cpu_count() or 1)
    if os.geteuid() != 0 and pe.mlock_bytes() + shared < WANTED_RING_BYTES:
        why = f"rings are smaller than {format_bytes(WANTED_RING_BYTES)} per CPU: records may be lost"
        return Finding(name, False, value, why, "sudo sysctl kernel.perf_event_mlock_kb=2048")
    return Finding(name, True, value, "", "")


def seccomp() -> Finding:
    """Whether this is a container whose filter refuses perf_event_open."""
    if not pe.in_container():
        return Finding("container", True, "no container, no seccomp filter", "", "")
    if record_basic().ok:
        return Finding("container", True, "a container or seccomp filter; it allows perf events", "", "")
    why = "a seccomp filter may refuse perf_event_open, whatever perf_event_paranoid says"
    fix = "docker run --security-opt seccomp=unconfined --cap-add PERFMON ..."
    return Finding("container", False, "a container or seccomp filter", why, fix)


def counters(host: HostFacts) -> Finding:
    """Whether the CPU's own counters are there. Nothing here needs them."""
    event = pe.Event(pe.TYPE_HARDWARE, pe.HW_CPU_CYCLES, pe.SAMPLE_TIME, pe.DISABLED | pe.EXCLUDE_KERNEL)
    try:
        os.close(pe.open_event(event, 0, -1))
    except OSError as error:
        place = "this virtual machine has none" if host.virtual != "none" else error.strerror
        return Finding("hardware counters", True, f"absent ({place}); nothing here needs them", "", "")
    return Finding("hardware counters", True, "present", "", "")


def thp(host: HostFacts) -> Finding:
    """The setting of transparent huge pages, and whether it can be changed here."""
    name = "transparent huge pages"
    if not host.thp:
        return Finding(name, False, "absent", "this kernel has no transparent huge pages: +thp needs another one", "")
    value = f"{host.thp}, defrag {host.thp_defrag or 'unknown'}"
    if host.thp == "never":
        why = "programs get no superpages, not even those that ask with madvise"
        return Finding(name, False, value, why, f"echo madvise | sudo tee {THP}/enabled")
    return Finding(name, True, value, "", "")


def mthp(host: HostFacts) -> Finding:
    """The sizes of multi-size THP and what each is set to."""
    name = "mTHP"
    if not host.mthp:
        return Finding(
            name, False, "absent", "this kernel has no sizes between base page and superpage", "Linux 6.8 or later"
        )
    value = ", ".join(f"{size} {setting}" for size, setting in host.mthp.items())
    return Finding(name, True, value, "", "")


def calibrate(host: HostFacts) -> Finding:
    """Whether the costs of this machine can be measured: superpages need THP to be allowed by advice at least."""
    if host.thp == "never" and os.geteuid() != 0:
        why = "superpage costs cannot be measured: THP is never, and only root may change it"
        return Finding("calibrate", True, "base pages only", why, f"echo madvise | sudo tee {THP}/enabled")
    return Finding("calibrate", True, "yes", "", "")


def verify() -> Finding:
    """Whether the knobs of the kernel can be set, as verify does (and restores them)."""
    name = "verify knobs"
    if not THP.is_dir():
        return Finding(name, False, "no", "this kernel has no transparent huge pages to set", "")
    if os.access(THP / "enabled", os.W_OK):
        return Finding(name, True, "yes: /sys is writable", "", "")
    if os.geteuid() == 0:
        why = f"{THP} is read-only, as in a container"
        return Finding(name, False, "no", why, "docker run --privileged ...")
    return Finding(name, False, "no", "only root may set THP and mTHP", "sudo firsttouch verify ...")


def guest_memory(host: HostFacts) -> Finding:
    """Whether the host of this virtual machine takes free memory back: a touch may then fault on the host too."""
    name = "memory backing"
    if host.virtual == "none":
        return Finding(name, True, "not a virtual machine", "", "")
    if host.free_page_reporting:
        why = "the host takes free memory back: the first touch of such a page costs the host a fault too"
        fix = "calibrate warms memory first; in the hypervisor: balloon without free-page-reporting"
        return Finding(name, False, f"{host.virtual}, free page reporting", why, fix)
    if host.free_page_reporting is None:
        return Finding(name, True, f"{host.virtual}; whether the host takes memory back cannot be seen", "", "")
    return Finding(name, True, f"{host.virtual}, no free page reporting", "", "")


def versions() -> list[Finding]:
    """Python, Numba and kernel."""
    import numba

    return [
        Finding("python", True, platform.python_version(), "", ""),
        Finding("numba", True, numba.__version__, "", ""),
        Finding("kernel", True, platform.release(), "", ""),
    ]
