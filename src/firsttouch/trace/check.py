"""Is a trace whole, and do its rows make sense? Each check is one SQL query that counts the rows which do not."""

from __future__ import annotations

import msgspec

from firsttouch.trace.store import Trace

# A page fault may reach its ring this long after a later one of another CPU did.
DISORDER_NS = 1_000_000_000
MAX_UNMAPPED_RATIO = 0.01


class Check(msgspec.Struct, frozen=True):
    """One check: what was looked at, whether it holds, and the figure."""

    name: str
    ok: bool
    text: str


def check(trace: Trace) -> list[Check]:
    """All checks of a trace, in the order a reader wants them. Raises FirsttouchError when a table cannot be read."""
    meta = trace.meta
    touches = _one(trace, "SELECT count(*) FROM touch")
    lost = int(meta["lost"] or 0)
    out = [
        Check(
            "finished", meta["finished"] is True, "yes" if meta["finished"] else "no: the recorder was stopped early"
        ),
        Check("lost", lost == 0, f"{lost:,} records"),
        Check("touches", touches > 0, f"{touches:,} rows"),
    ]
    wall_ns = meta["wall_ns"]
    counts = {
        "touch times": f"""
            SELECT count(*) FROM touch
            WHERE t_ns < {-DISORDER_NS} OR t_ns > {int(wall_ns) + DISORDER_NS if wall_ns is not None else 2**62}""",
        "touch order": f"""
            SELECT count(*) FROM (SELECT t_ns, max(t_ns) OVER (ORDER BY rowid) AS latest FROM touch)
            WHERE t_ns < latest - {DISORDER_NS}""",
        "addresses": "SELECT count(*) FROM touch WHERE vaddr >= 128::UBIGINT << 50 OR cpu < -1 OR pid < -1",
        "ranges": """
            SELECT (SELECT count(*) FROM map WHERE "start" >= "end")
                 + (SELECT count(*) FROM unmap WHERE "start" > "end")
                 + (SELECT count(*) FROM advice WHERE "start" > "end")""",
        "map numbers": "SELECT count(*) FROM touch WHERE map_id >= 0 AND map_id NOT IN (SELECT map_id FROM map)",
        "map bounds": """
            SELECT count(*) FROM touch JOIN (
              SELECT map_id, min("start") AS low, max("end") AS high FROM map GROUP BY map_id) USING (map_id)
            WHERE (vaddr < low OR vaddr >= high) AND NOT EXISTS (  -- mremap keeps the number and moves the range
              SELECT 1 FROM unmap WHERE how = 'mremap' AND vaddr >= to_start AND vaddr < to_end)""",
        "stack numbers": """
            SELECT count(*) FROM touch WHERE stack_id >= 0 AND stack_id NOT IN (SELECT stack_id FROM stack)""",
    }
    for name, query in counts.items():
        wrong = _one(trace, query)
        out.append(Check(name, wrong == 0, "all in range" if wrong == 0 else f"{wrong:,} rows are not"))
    nowhere = _one(trace, "SELECT count(*) FROM touch WHERE map_id < 0")
    ratio = nowhere / touches if touches else 0.0
    out.append(
        Check("mappings found", ratio <= MAX_UNMAPPED_RATIO, f"{1 - ratio:.2%} of touches lie in a known mapping")
    )
    return out


def _one(trace: Trace, query: str) -> int:
    return int(trace.sql(query)[0][0])
