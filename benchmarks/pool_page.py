"""The parts of docs/pool.md and README.md that a stored measurement of the pool fills.

    python benchmarks/pool_page.py docs/measured/pool.json docs/pool.md README.md

What stands between the marks is replaced; a page has the mark of the full tables, of the short one, or both.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench_pool import BUSY, OPS, PROGRAMS

MARK = "<!-- {0}: {1} (made by `make pool-numbers`) -->"


def put(text: str, name: str, part: str) -> str:
    """The page with what is between the marks of `name` replaced; as it is where it has none."""
    begin, end = MARK.format("begin", name), MARK.format("end", name)
    before, mark, rest = text.partition(begin)
    if not mark:
        return text
    _, mark, after = rest.partition(end)
    if not mark:
        raise SystemExit(f"there is {begin} without {end}")
    return f"{before}{begin}\n\n{part.strip()}\n\n{end}{after}"


def ratio(base: float, other: float | None) -> str:
    return f"{base / other:.2f}" if other else "-"


def peers(row: dict[str, dict[str, float]], key: str) -> float:
    """The least time of what is not the pool."""
    return min(each[key] for name, each in row.items() if not name.startswith("pool") and key in each)


def times_table(rows: dict[str, dict[str, float]], keys: list[str]) -> list[str]:
    """glibc's time, how many times as fast each other is, and the pool against the best of them."""
    others = sorted((name for name in rows if name != "glibc" and rows[name]), key=lambda name: name.startswith("pool"))
    out = [f"| | glibc, ms | {' | '.join(others)} | pool / best peer |", "|---" * (len(others) + 3) + "|"]
    for key in keys:
        base = rows["glibc"][key]
        cells = [ratio(base, rows[name].get(key)) for name in others]
        out.append(
            f"| {key} MiB | {base / 1e6:.3f} | {' | '.join(cells)} | {peers(rows, key) / rows['pool'][key]:.2f} |"
        )
    return out


def sized(rows: dict[str, dict[str, float]]) -> list[str]:
    """The results that are of an operation and a size, in order."""
    keys = [key for key in rows["glibc"] if key.rpartition(" ")[2].isdigit()]
    return sorted(keys, key=lambda key: (OPS.index(key.split()[0]), int(key.split()[1])))


def sources(row: dict[str, float], key: str) -> str:
    return ", ".join(f"{row[f'{key} {kind}']:.0f}" for kind in ("hits", "hot", "misses"))


def programs_table(programs: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    out = [
        "| program | NumPy on | wall, s | user, s | system, s | faults | peak, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in PROGRAMS:
        for allocator, row in programs[name].items():
            out.append(
                f"| {name} | {allocator} | {row['wall_s']:.2f} | {row['user_s']:.2f} | {row['system_s']:.2f} | "
                f"{row['faults']:,.0f} | {row['peak_mib']:,.0f} |"
            )
    return out


def full(results: dict) -> str:
    """Everything."""
    host = results["host"]
    small, install = results["small"], results["install"]
    out = [
        f"On {host['cpus']} CPUs ({host['cpu']}, a virtual machine), Linux {host['kernel']}, NumPy {host['numpy']}. "
        "Medians of interleaved rounds, a process for each configuration and round. Times of glibc as it is; for the "
        "others how many times as fast. `-tuned` keeps what it has: no trimming, no decay.",
        "",
        "Zeros touched once a page or filled, and arithmetic, repeated without rest after a rest of 0.15 s for all:",
        "",
        *times_table(results["ops"], sized(results["ops"])),
        "",
        "Of the pool's zeros, how many were zeroed ahead, in cache, and when asked for: "
        + "; ".join(
            f"{key} MiB {sources(results['ops']['pool'], key)}" for key in sized(results["ops"]) if "fill" in key
        )
        + ".",
        "",
        'A program that never rests, so that nothing is zeroed ahead (`paced`: `pace="300us"`):',
        "",
        *times_table(results["never"], sized(results["never"])),
    ]
    if "idle" in results:
        out += [
            "",
            "After 15 s of sleep, on a host that takes free memory back meanwhile:",
            "",
            *times_table(results["idle"], sized(results["idle"])),
        ]
    out += [
        "",
        "Three programs of `benchmarks/programs` from start to end, the start of Python and the pool included:",
        "",
        *programs_table(results["program"]),
        "",
        "A foreground that never idles, with memory to be scrubbed against without; medians over pairs of turns:",
        "",
        f"| the scrubber works | {' | '.join(BUSY)} | scrubbed meanwhile, MiB |",
        "|---" * (len(BUSY) + 2) + "|",
    ]
    for name, row in results["busy"].items():
        out.append(
            f"| {name} | {' | '.join(f'{row[key]:+.1%}' for key in BUSY)} | {row['scrubbed_bytes'] / 2**20:,.0f} |"
        )
    out += [
        "",
        "Small arrays, ns more than without the pool: "
        + ", ".join(f"`{key}` {small[f'{key} more']:+.1f}" for key in small if f"{key} more" in small)
        + f". Installing, once compiled: {install['wall_ms']:.0f} ms and {install['rss_mib']:.0f} MiB.",
    ]
    return "\n".join(out)


def short(results: dict) -> str:
    """The README's table."""
    out = ["| program | | wall | in the kernel | faults |", "|---|---|---|---|---|"]
    for name in PROGRAMS:
        for allocator, label in (("glibc", "NumPy on glibc"), ("pool", "with the pool")):
            row = results["program"][name][allocator]
            out.append(f"| {name} | {label} | {row['wall_s']:.2f} s | {row['system_s']:.2f} s | {row['faults']:,.0f} |")
    ops = results["ops"]
    key = "zeros+touch 32"
    out += [
        "",
        f"`np.zeros` of 32 MiB touched once a page: {ops['glibc'][key] / 1e6:.2f} ms without, "
        f"{ops['pool'][key] / 1e6:.2f} ms with the pool; filled: {ops['glibc']['zeros+fill 32'] / 1e6:.2f} and "
        f"{ops['pool']['zeros+fill 32'] / 1e6:.2f} ms.",
    ]
    return "\n".join(out)


def main() -> None:
    stored, *pages = sys.argv[1:]
    results = json.loads(Path(stored).read_text())
    for page in map(Path, pages):
        text = page.read_text()
        page.write_text(put(put(text, "pool, full", full(results)), "pool, short", short(results)))


if __name__ == "__main__":
    main()
