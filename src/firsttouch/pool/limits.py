"""How much memory the pool may keep: what the user allows, of what the machine and the control group have left."""

from __future__ import annotations

import os
from pathlib import Path

from firsttouch.units import parse_bytes

_ROOT = Path("/")
SHARE = 0.25  # of what is available, when the user names no limit
MOST = 0.8  # of what is available, whatever the user names
_USUAL_L2_BYTES, _USUAL_L3_BYTES = 1 << 20, 8 << 20


def available_bytes(root: Path = _ROOT) -> int:
    """Memory to be had without swapping: MemAvailable, or less where a control group (v1 or v2) leaves less."""
    left = [_meminfo(root)]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit, usage = "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit, usage = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            folder = root.joinpath(base, *parts[:depth])
            most, used = _read(folder / limit), _read(folder / usage)
            if most.isdigit() and used.isdigit():
                left.append(max(0, int(most) - int(used)))
    return min(left)


def _meminfo(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def cache_bytes(root: Path = _ROOT) -> tuple[int, int]:
    """L2 and last-level cache of CPU 0; the usual sizes where they are hidden."""
    sizes: dict[int, int] = {}  # level -> bytes
    for index in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level, size, kind = (_read(index / name) for name in ("level", "size", "type"))
        if kind != "Instruction" and level.isdigit() and size[:1].isdigit():
            sizes[int(level)] = parse_bytes(size)
    l2_bytes = sizes.get(2) or _USUAL_L2_BYTES
    return l2_bytes, max(sizes[max(sizes)] if sizes else _USUAL_L3_BYTES, l2_bytes)
