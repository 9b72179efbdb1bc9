"""What this machine is: sizes, kernel, and the settings that first touches depend on, read from /proc and /sys.

Every function takes the root of the file system, so that a test can show it another machine. What cannot be read is
None, or the most usual value where the model must have one; nothing here needs root or raises.
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import msgspec

from firsttouch.host import knobs
from firsttouch.units import parse_bytes

_ROOT = Path("/")
_USUAL_LINE_BYTES, _USUAL_L2_BYTES = 64, 1 << 20
_BALLOON, _REPORTING_BIT = "0x0005", 5  # virtio device id; VIRTIO_BALLOON_F_REPORTING
_BY_VENDOR = (  # what DMI says -> the hypervisor, as systemd-detect-virt names it
    ("KVM", "kvm"),
    ("OpenStack", "kvm"),
    ("Amazon EC2", "amazon"),
    ("Google", "google"),
    ("QEMU", "qemu"),
    ("VMware", "vmware"),
    ("VMW", "vmware"),
    ("innotek GmbH", "oracle"),
    ("VirtualBox", "oracle"),
    ("Xen", "xen"),
    ("Bochs", "bochs"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Hyper-V", "microsoft"),
    ("Virtual Machine", "microsoft"),
    ("Apple Virtualization", "apple"),
)
_BY_CLOCK = (("kvm-clock", "kvm"), ("hyperv_clocksource", "microsoft"), ("xen", "xen"))


class HostFacts(msgspec.Struct, frozen=True):
    """This machine; `fingerprint` names everything that its costs depend on."""

    kernel: str
    cpu: str
    nr_cpus: int
    memory_bytes: int  # the smaller of the machine's and the control group's
    page_bytes: int
    line_bytes: int
    l2_bytes: int  # per CPU
    llc_bytes: int  # shared
    virtual: str  # the hypervisor, "vm-other", or "none"
    thp: str  # always, madvise, never; "" where the kernel has none
    thp_defrag: str
    mthp: dict[str, str]  # "64kB" -> always, inherit, madvise, never
    fault_around_bytes: int | None  # None: debugfs is not mounted, or not for us
    free_page_reporting: bool | None  # whether the host is told of free memory, and takes it; None: not known
    perf_event_paranoid: int | None
    fingerprint: str


def facts(root: Path = _ROOT) -> HostFacts:
    """What this machine is."""
    cpu, count, memory = cpu_name(root), nr_cpus(root), memory_bytes(root)
    kernel = read(root, "proc/sys/kernel/osrelease") or platform.release()
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    virtual = hypervisor(root)
    line_bytes, l2_bytes, llc_bytes = caches(root)
    identity = f"{cpu}|{count}|{memory.bit_length()}|{kernel}|{page_bytes}"
    around = read(root, "sys/kernel/debug/fault_around_bytes")
    paranoid = read(root, "proc/sys/kernel/perf_event_paranoid")
    return HostFacts(
        kernel=kernel,
        cpu=cpu,
        nr_cpus=count,
        memory_bytes=memory,
        page_bytes=page_bytes,
        line_bytes=line_bytes,
        l2_bytes=l2_bytes,
        llc_bytes=llc_bytes,
        virtual=virtual,
        thp=knobs.thp_enabled(root),
        thp_defrag=knobs.thp_defrag(root),
        mthp=knobs.mthp(root),
        fault_around_bytes=int(around) if around.isdigit() else None,
        free_page_reporting=free_page_reporting(root, virtual),
        perf_event_paranoid=int(paranoid) if paranoid.lstrip("-").isdigit() else None,
        fingerprint=hashlib.sha256(identity.encode()).hexdigest()[:12],
    )


def read(root: Path, name: str) -> str:
    """The text of a small file under `root`, stripped; "" when it cannot be read."""
    try:
        return (root / name).read_text(errors="replace").strip(" \n\t\0")
    except OSError:
        return ""


def _cpuinfo(root: Path, field: str) -> str:
    for line in read(root, "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == field:
            return value.strip()
    return ""


def cpu_name(root: Path = _ROOT) -> str:
    """Model name with family and model numbers, as clouds hide the name; implementer and part on Arm."""
    name = _cpuinfo(root, "model name")
    family, model = _cpuinfo(root, "cpu family"), _cpuinfo(root, "model")
    if name and family and model:
        return f"{name} (family {family}, model {model})"
    implementer, part = _cpuinfo(root, "CPU implementer"), _cpuinfo(root, "CPU part")
    return name or (f"Arm implementer {implementer} part {part}" if part else platform.machine())


def nr_cpus(root: Path = _ROOT) -> int:
    """CPUs online."""
    count = 0
    for span in read(root, "sys/devices/system/cpu/online").split(","):
        first, _, last = span.partition("-")
        if first.isdigit():
            count += int(last or first) - int(first) + 1
    if not count:
        count = sum(line.startswith("processor") for line in read(root, "proc/cpuinfo").splitlines())
    return count or os.cpu_count() or 1


def memory_bytes(root: Path = _ROOT) -> int:
    """Memory that this process may use: MemTotal, or less where its control group (v1 or v2) has a limit."""
    total = 0
    for line in read(root, "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) * 1024
    limits = [int(text) for text in _cgroup_limits(root) if text.isdigit()]
    return (
        min([total, *limits])
        if total
        else min(limits, default=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    )


def _cgroup_limits(root: Path) -> list[str]:
    found = []
    for line in read(root, "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            found.append(read(root, "/".join([base, *parts[:depth], name])))
    return found


def caches(root: Path = _ROOT) -> tuple[int, int, int]:
    """Bytes of a line, of the L2 and of the last-level cache of CPU 0; the usual sizes where they are hidden."""
    line_bytes, l2_bytes, llc_bytes, top = 0, 0, 0, 0
    folder = root / "sys/devices/system/cpu/cpu0/cache"
    for index in sorted(folder.glob("index*")):
        name = str(index.relative_to(root))
        level, size, kind = read(root, f"{name}/level"), read(root, f"{name}/size"), read(root, f"{name}/type")
        if kind == "Instruction" or not level.isdigit() or not size[:1].isdigit():
            continue
        size_bytes = parse_bytes(size)
        line = read(root, f"{name}/coherency_line_size")
        line_bytes = max(line_bytes, int(line) if line.isdigit() else 0)
        if int(level) == 2:
            l2_bytes = size_bytes
        if int(level) > top and size_bytes:
            top, llc_bytes = int(level), size_bytes
    l2_bytes = l2_bytes or _USUAL_L2_BYTES
    return line_bytes or _USUAL_LINE_BYTES, l2_bytes, max(llc_bytes, l2_bytes)


def hypervisor(root: Path = _ROOT) -> str:
    """What this machine runs on: kvm, vmware, xen, ... as systemd-detect-virt names them; "vm-other"; "none"."""
    flags = (_cpuinfo(root, "flags") or _cpuinfo(root, "Features")).split()
    device_tree = read(root, "proc/device-tree/hypervisor/compatible")
    if device_tree:
        return "kvm" if "kvm" in device_tree else "xen" if "xen" in device_tree else "vm-other"
    if read(root, "sys/hypervisor/type") == "xen":
        return "xen"
    dmi = " ".join(
        read(root, f"sys/class/dmi/id/{name}") for name in ("product_name", "sys_vendor", "board_vendor", "bios_vendor")
    )
    named = next((name for text, name in _BY_VENDOR if text in dmi), "")
    if "hypervisor" not in flags:  # Arm has no such flag, and bare-metal clouds carry the vendor's name
        return named if named and not flags else named if named in ("kvm", "qemu", "apple") else "none"
    clocks = read(root, "sys/devices/system/clocksource/clocksource0/available_clocksource").split()
    return named or next((name for text, name in _BY_CLOCK if text in clocks), "vm-other")


def free_page_reporting(root: Path = _ROOT, virtual: str = "none") -> bool | None:
    """Whether a virtio balloon tells the host which memory is free; None in a virtual machine that does not show it."""
    devices = sorted((root / "sys/bus/virtio/devices").glob("*"))
    for device in devices:
        name = str(device.relative_to(root))
        if read(root, f"{name}/device") == _BALLOON:
            features = read(root, f"{name}/features")
            return features[_REPORTING_BIT : _REPORTING_BIT + 1] == "1" if features else None
    return False if devices or virtual == "none" else None
