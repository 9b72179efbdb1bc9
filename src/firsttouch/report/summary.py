"""What is in a trace, in a screenful: how it was made, what was touched, where, and by whom."""

from __future__ import annotations

from typing import Any

from firsttouch.report.tables import counted
from firsttouch.trace.store import Trace
from firsttouch.units import format_bytes, format_ns

TOP_MAPPINGS = 8


def facts(trace: Trace) -> list[tuple[str, str]]:
    """Label and text of each fact of a recording."""
    meta = trace.meta
    host: dict[str, Any] = meta["host"] if isinstance(meta["host"], dict) else {}
    touches, processes, threads = trace.sql("SELECT count(*), count(DISTINCT pid), count(DISTINCT tid) FROM touch")[0]
    page_bytes = int(meta["page_bytes"] or 0) or 4096
    rows = [
        ("command", " ".join(str(word) for word in meta["command"] or []) or "-"),
        ("recorded", _how(meta)),
        ("host", ", ".join(str(host[key]) for key in ("kernel", "cpu") if host.get(key)) or "-"),
        ("exit", "-" if meta["exit"] is None else str(meta["exit"])),
        ("wall", "-" if meta["wall_ns"] is None else format_ns(meta["wall_ns"])),
        ("touches", f"{touches:,} ({format_bytes(touches * page_bytes)})"),
        ("tasks", f"{counted(processes, 'process', 'processes')}, {counted(threads, 'thread', 'threads')}"),
    ]
    if meta["minflt"] is not None:
        rows.append(("kernel's count", f"{meta['minflt']:,} minor and {meta['majflt'] or 0:,} major faults"))
    rows.append(("kinds", kinds(trace)))
    return rows


def kinds(trace: Trace) -> str:
    """How many touches of each kind, as text."""
    query = """
        SELECT CASE WHEN kind & 16 > 0 THEN 'file' WHEN kind & 8 > 0 THEN 'copy on write'
                    WHEN kind & 32 > 0 THEN 'anonymous' WHEN kind & 1 > 0 THEN 'anonymous write'
                    ELSE 'anonymous read' END AS what,
               count(*), count(*) FILTER (WHERE kind & 4 > 0)
        FROM touch GROUP BY what ORDER BY 2 DESC, 1
    """
    parts = []
    for what, number, kernel in trace.sql(query):
        parts.append(f"{what} {number:,}" + (f" ({kernel:,} in system calls)" if kernel else ""))
    return ", ".join(parts) or "-"


def mappings(trace: Trace, limit: int = TOP_MAPPINGS) -> list[tuple[str, int]]:
    """Names of the mappings with the most touches, and how many; mappings without a name are one, "anonymous"."""
    return [
        (str(name), int(number))
        for name, number in trace.sql(
            f"""
            SELECT coalesce(nullif(name, ''), 'anonymous') AS what, count(*)
            FROM touch LEFT JOIN (SELECT map_id, any_value(name) AS name FROM map GROUP BY map_id) USING (map_id)
            GROUP BY what ORDER BY 2 DESC, 1 LIMIT {int(limit)}
            """
        )
    ]


def functions(trace: Trace, limit: int = 12) -> list[tuple[str, int]]:
    """Innermost functions with the most touches; empty without call chains."""
    return [
        (str(name), int(number))
        for name, number in trace.sql(
            f"""
            SELECT coalesce(nullif(symbol.name, ''), printf('0x%x', touch.ip)) AS what, count(*)
            FROM touch LEFT JOIN (SELECT pid, ip, any_value(name) AS name FROM symbol GROUP BY pid, ip) AS symbol
              ON symbol.pid = touch.pid AND symbol.ip = touch.ip
            WHERE stack_id >= 0 GROUP BY what ORDER BY 2 DESC, 1 LIMIT {int(limit)}
            """
        )
    ]


def over_time(trace: Trace, nr_bins: int = 200) -> tuple[list[float], list[int]]:
    """Milliseconds and touches in each of `nr_bins` equal parts of the recording."""
    first, last = trace.sql("SELECT coalesce(min(t_ns), 0), coalesce(max(t_ns), 0) FROM touch")[0]
    width = max(1, -(-(last - first + 1) // nr_bins))
    counts = dict(trace.sql(f"SELECT (t_ns - {first}) // {width} AS bin, count(*) FROM touch GROUP BY bin"))
    bins = range(-(-(last - first + 1) // width))
    return [(first + (i + 0.5) * width) / 1e6 for i in bins], [int(counts.get(i, 0)) for i in bins]


def _how(meta: dict[str, Any]) -> str:
    parts = [f"level {meta['level'] or '?'}", f"{int(meta['lost'] or 0):,} lost"]
    parts.append("huge pages off" if meta["base_pages"] else "huge pages as the program had them")
    if meta.get("unseen"):
        parts.append(f"{meta['unseen']:,} not seen")
    if not meta["finished"]:
        parts.append("not finished")
    return ", ".join(parts)
