"""A trace in the formats of other tools: Parquet (any data frame), speedscope (call chains), Perfetto (time line)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from firsttouch.errors import FirsttouchError
from firsttouch.trace import schema
from firsttouch.trace.store import Trace

_REPLACE = "use --force to replace it, or -o to name another file"
_ELSEWHERE = "name a folder that exists and is yours"
_KIND_BITS = (
    (schema.WRITE, "write"), (schema.EXEC, "exec"), (schema.KERNEL, "kernel"), (schema.PROTECTION, "protection"),
    (schema.FILE, "file"), (schema.UNKNOWN_ACCESS, "unknown access"),
)  # fmt: skip


def export(trace: Trace, kind: str, path: Path | str, *, force: bool = False) -> Path:
    """Write a trace as `kind`: parquet (a folder, one file a table), speedscope or perfetto (one JSON file each).

    Raises FirsttouchError when `path` exists and not `force`, cannot be written, or the trace lacks what `kind` needs.
    """
    if kind not in FORMATS:
        raise FirsttouchError(f"there is no export format {kind!r}", f"choose one of {', '.join(FORMATS)}")
    target = Path(path)
    if target.exists() and not force:
        raise FirsttouchError(f"{target} exists already", _REPLACE)
    if target.exists() and target.samefile(trace.path):
        raise FirsttouchError(f"{target} is the trace itself", "name another file with -o")
    FORMATS[kind](trace, target)
    return target


def write_text(path: Path | str, text: str, *, force: bool = False) -> Path:
    """Write a new text file, whole. Raises FirsttouchError when it exists and not `force`, or cannot be written."""
    target = Path(path)
    try:
        with target.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise FirsttouchError(f"{target} exists already", _REPLACE) from None
    except OSError as error:
        raise FirsttouchError(f"cannot write {target}: {error.strerror}", _ELSEWHERE) from None
    return target


def _parquet(trace: Trace, target: Path) -> None:
    try:
        if target.exists() and not target.is_dir():
            target.unlink()
        target.mkdir(exist_ok=True)
    except OSError as error:
        raise FirsttouchError(f"cannot write {target}: {error.strerror}", _ELSEWHERE) from None
    for table in schema.TABLES:
        name = str(target / f"{table}.parquet").replace("'", "''")
        trace.sql(f"COPY (SELECT * FROM \"{table}\") TO '{name}' (FORMAT parquet)")


def _speedscope(trace: Trace, target: Path) -> None:
    """One sampled profile a process; the weight of a chain is the bytes it touched first."""
    chains: dict[int, list[int]] = defaultdict(list)
    for stack_id, ip in trace.sql("SELECT stack_id, ip FROM stack ORDER BY stack_id, depth DESC"):
        chains[stack_id].append(ip)  # outermost first, as speedscope wants
    if not chains:
        raise FirsttouchError(
            f"{trace.path} holds no call chains", "record them: firsttouch record --stacks -- COMMAND"
        )
    symbols = {(pid, ip): (name, file, line) for pid, ip, name, file, line in trace.sql("SELECT * FROM symbol")}
    frames: list[dict[str, Any]] = []
    number: dict[tuple[str, str | None], int] = {}

    def frame(pid: int, ip: int) -> int:
        name, file, line = symbols.get((pid, ip), (None, None, None))
        key = (name or f"{ip:#x}", file)
        if key not in number:
            number[key] = len(frames)
            entry: dict[str, Any] = {"name": key[0]}
            entry |= {"file": file} if file else {}
            entry |= {"line": line} if line and line > 0 else {}
            frames.append(entry)
        return number[key]

    page_bytes = int(trace.meta["page_bytes"] or 0) or 4096
    profiles: dict[int, dict[str, Any]] = {}
    for pid, stack_id, touches in trace.sql(
        "SELECT pid, stack_id, count(*) FROM touch WHERE stack_id >= 0 GROUP BY ALL ORDER BY ALL"
    ):
        profile = profiles.setdefault(
            pid, {"type": "sampled", "name": f"pid {pid}", "unit": "bytes", "startValue": 0, "endValue": 0,
                  "samples": [], "weights": []},
        )  # fmt: skip
        profile["samples"].append([frame(pid, ip) for ip in chains.get(stack_id, [])])
        profile["weights"].append(touches * page_bytes)
        profile["endValue"] += touches * page_bytes
    _write_json(
        target,
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "name": f"first touches of {trace.path.name}",
            "shared": {"frames": frames},
            "profiles": list(profiles.values()),
            "exporter": "firsttouch",
        },
    )


def _perfetto(trace: Trace, target: Path) -> None:
    """Chrome trace events: touches, unmaps and tasks as instants, bytes touched as a counter."""
    events: list[dict[str, Any]] = []
    page_bytes = int(trace.meta["page_bytes"] or 0) or 4096
    names = {map_id: name for map_id, name in trace.sql("SELECT map_id, any_value(name) FROM map GROUP BY map_id")}
    for t_ns, pid, tid, event, parent, comm in trace.sql("SELECT * FROM task ORDER BY t_ns"):
        if comm:
            kind = "process_name" if pid == tid else "thread_name"
            events.append({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": comm}})
        if event in ("fork", "exec", "exit"):
            events.append(
                {"ph": "i", "s": "t", "name": event, "cat": "task", "pid": pid, "tid": tid, "ts": t_ns / 1000,
                 "args": {"parent": parent}}
            )  # fmt: skip
    touched: dict[int, int] = defaultdict(int)
    for t_ns, pid, tid, vaddr, kind, map_id in trace.sql(
        "SELECT t_ns, pid, tid, vaddr, kind, map_id FROM touch ORDER BY t_ns"
    ):
        words = " ".join(word for bit, word in _KIND_BITS if kind & bit) or "read"
        events.append(
            {"ph": "i", "s": "t", "name": words, "cat": "touch", "pid": pid, "tid": tid, "ts": t_ns / 1000,
             "args": {"vaddr": f"{vaddr:#x}", "map": names.get(map_id) or ""}}
        )  # fmt: skip
        touched[pid] += page_bytes
        events.append(
            {"ph": "C", "name": "bytes touched", "pid": pid, "ts": t_ns / 1000, "args": {"bytes": touched[pid]}}
        )
    for t_ns, pid, start, end, how in trace.sql('SELECT t_ns, pid, "start", "end", how FROM unmap ORDER BY t_ns'):
        events.append(
            {"ph": "i", "s": "p", "name": how, "cat": "unmap", "pid": pid, "tid": pid, "ts": t_ns / 1000,
             "args": {"start": f"{start:#x}", "end": f"{end:#x}"}}
        )  # fmt: skip
    _write_json(target, {"displayTimeUnit": "ns", "traceEvents": events})


def _write_json(target: Path, tree: dict[str, Any]) -> None:
    write_text(target, msgspec.json.encode(tree).decode(), force=True)


FORMATS: dict[str, Callable[[Trace, Path], None]] = {
    "parquet": _parquet,
    "speedscope": _speedscope,
    "perfetto": _perfetto,
}
