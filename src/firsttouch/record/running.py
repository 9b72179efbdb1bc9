"""What /proc says of a process that runs already."""

from __future__ import annotations

import os
from pathlib import Path

from firsttouch.trace.raw import Mapping, Process


def read_process(pid: int) -> Process:
    """Its mappings and threads as they are now; none if it is gone."""
    return Process(pid, read_maps(pid), read_threads(pid))


def read_maps(pid: int) -> list[Mapping]:
    """Mappings of a running process, from /proc; [] if it is gone or not ours to see."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    mappings = []
    for line in lines:
        words = line.split(maxsplit=5)
        start, end = (int(word, 16) for word in words[0].split("-"))
        prot = sum(bit for bit, letter in zip((1, 2, 4), words[1], strict=False) if letter != "-")
        flags = 1 if words[1][3] == "s" else 2
        if start < 1 << 63:
            mappings.append((start, end, int(words[2], 16), prot, flags, words[5] if len(words) > 5 else "//anon"))
    return mappings


def read_threads(pid: int) -> list[tuple[int, str]]:
    """(tid, name) of the threads of a running process."""
    threads = []
    try:
        tids = sorted(int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
    for tid in tids:
        try:
            threads.append((tid, Path(f"/proc/{pid}/task/{tid}/comm").read_text().rstrip("\n")))
        except OSError:
            continue
    return threads


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
