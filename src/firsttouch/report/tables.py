"""Tables for a terminal (rich) and for a mail (ASCII, `PLAIN_COLUMNS` wide at most), of the same cells.

Cells are made once, as text; how they are laid out is all that differs. Text that came from a trace is shown without
its control characters, so that a program's name cannot move the cursor.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from firsttouch.units import format_bytes, format_ns
from firsttouch.whatif.advice import saved_ratio

if TYPE_CHECKING:
    from rich.console import Console

    from firsttouch.mm.outcome import Outcome
    from firsttouch.whatif import WhatIf

PLAIN_COLUMNS = 78
PLAIN_LABEL_COLUMNS = 24
TERMINAL_COLUMNS = 100

AVAILABLE = {"now": "now", "boot": "at boot", "patch": "patch", "pool": "pool"}
IN_USE = "in use"
COLUMNS = ("policy", "have it", "faults", "in faults", "wall", "saved", "peak", "untouched", "daemon")
MEANINGS = (
    ("have it", "in use: what this machine is set to; now: by the command below; at boot; patch: another kernel"),
    ("in faults", "time in the page-fault path, over all threads"),
    ("saved", "of wall time, against the policy in use; fails: memory runs out"),
    ("peak", "most memory mapped at one time"),
    ("untouched", "memory mapped but never touched"),
    ("daemon", "CPU time of a background scrubber"),
)
_KINDS = (
    ("zero_fill", "zero-fill"), ("huge", "huge"), ("cow", "COW copy"), ("reuse", "COW without a copy"),
    ("file", "file"), ("shared", "shared memory"), ("zero_page", "zero page"), ("spurious", "spurious"),
    ("resident", "in memory, not mapped"),
)  # fmt: skip


def safe(text: str) -> str:
    """`text` with control characters and other unprintables spelled out."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def plain(text: str) -> str:
    """`safe(text)` in ASCII."""
    return safe(text).encode("ascii", "backslashreplace").decode("ascii")


def counted(number: int, one: str, many: str) -> str:
    """`1 thread`, `1,200 threads`."""
    return f"{number:,} {one if number == 1 else many}"


def share(part: float, whole: float) -> str:
    """A percentage, or a dash of nothing."""
    return f"{part / whole:.1%}" if whole else "-"


def whatif_order(result: WhatIf) -> list[Outcome]:
    """Outcomes by wall saved, best first; what runs out of memory last."""
    return sorted(result.outcomes, key=lambda outcome: (outcome.out_of_memory, outcome.wall_ns, outcome.policy))


def short_name(policy: str) -> str:
    """`+thp` for `linux-6.18+thp`; as `--policies` takes it."""
    base = "linux-6.18"
    return policy[len(base) :] if policy.startswith((base + "+", base + "-")) else policy


def whatif_cells(result: WhatIf) -> list[tuple[str, ...]]:
    """One row an outcome, in the order of `whatif_order`; the columns are `COLUMNS`."""
    rows: list[tuple[str, ...]] = []
    for outcome in whatif_order(result):
        is_reference = outcome.policy == result.now
        saved = f"{saved_ratio(outcome, result.reference):.1%}".replace("-0.0%", "0.0%")
        rows.append(
            (
                safe(short_name(outcome.policy)),
                IN_USE if is_reference and result.now_is_host else AVAILABLE[outcome.available],
                f"{outcome.faults:,}",
                format_ns(outcome.fault_ns),
                format_ns(outcome.wall_ns),
                "fails" if outcome.out_of_memory else "-" if is_reference else saved,
                format_bytes(outcome.peak_bytes),
                format_bytes(outcome.untouched_bytes),
                format_ns(outcome.background_ns) if outcome.background_ns else "-",
            )
        )
    return rows


def whatif_header(result: WhatIf) -> list[tuple[str, str]]:
    """What stands above the table: label and text."""
    facts, base = result.trace, result.base
    rows = [("program", safe(" ".join(facts.command) or facts.name))]
    how = ""
    if facts.level:
        how = f", level {facts.level}, {facts.lost:,} lost"
        how += "" if not facts.unseen else f", {facts.unseen:,} not seen"
    tasks = f"{counted(facts.processes, 'process', 'processes')}, {counted(facts.threads, 'thread', 'threads')}"
    rows.append(("recorded", f"{facts.touches:,} touches, {tasks}{how}"))
    total = sum(base.faults_by_kind.values())
    mix = [f"{label} {share(base.faults_by_kind.get(key, 0), total)}" for key, label in _KINDS]
    mix = [text for text, (key, _) in zip(mix, _KINDS, strict=True) if base.faults_by_kind.get(key, 0)]
    rows.append(("fault mix", ", ".join(mix) or "-"))
    wall, cpu = share(base.fault_ns, base.wall_ns), share(base.fault_ns, base.user_ns + base.system_ns)
    many = " over all threads" if facts.threads > 1 else ""
    rows.append(("fault path", f"{format_ns(base.fault_ns)}{many} with base pages: {wall} of wall, {cpu} of CPU time"))
    machine = result.machine
    rows.append(("machine", f"{safe(machine.name)}, {machine.nr_cpus} CPUs, {format_bytes(machine.memory_bytes)}"))
    rows += [("note", safe(text)) for text in result.warnings]
    return rows


def whatif_commands(result: WhatIf) -> list[tuple[str, str]]:
    """How to apply each policy that is not in use: short name and command."""
    rows = []
    for outcome in whatif_order(result):
        if outcome.apply and not (outcome.policy == result.now and result.now_is_host):
            rows.append((safe(short_name(outcome.policy)), safe(outcome.apply)))
    return rows


def whatif_plain(result: WhatIf) -> str:
    """The whole what-if as plain ASCII."""
    out = _plain_pairs(whatif_header(result))
    out += ["", *_plain_table(COLUMNS, whatif_cells(result))]
    if not result.now_is_host:
        out += ["", f"saved is against {plain(result.now)}."]
    out += ["", *_wrap(plain(result.advice))]
    commands = whatif_commands(result)
    if commands:
        out += ["", "how to have it:", *_plain_pairs(commands, indent="  ")]
    return "\n".join(line.rstrip() for line in out) + "\n"


def print_whatif(result: WhatIf, console: Console) -> None:
    """The whole what-if on a terminal; plain text when the terminal is too narrow for the table."""
    if console.width < TERMINAL_COLUMNS - 10:
        console.file.write(whatif_plain(result))
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    print_pairs(whatif_header(result), console)
    _emit(console, Text())
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in COLUMNS[:2] else "right", no_wrap=column != "policy")
    for row, outcome in zip(whatif_cells(result), whatif_order(result), strict=True):
        gain = round(saved_ratio(outcome, result.reference), 3)  # as shown
        cells = [Text(cell, style="bold" if outcome.policy == result.now else "") for cell in row]
        if row[5] != "-":
            cells[5].stylize("green" if gain > 0 and not outcome.out_of_memory else "red" if gain < 0 else "")
        table.add_row(*cells)
    _emit(console, table)
    if not result.now_is_host:
        _emit(console, Text(f"\nsaved is against {safe(result.now)}."))
    _emit(console, Text(f"\n{safe(result.advice)}", style="bold"))
    commands = whatif_commands(result)
    if commands:
        _emit(console, Text("\nhow to have it:"))
        print_pairs(commands, console, indent=2)


def print_pairs(rows: Sequence[tuple[str, str]], console: Console, indent: int = 0) -> None:
    """Labels and texts, wrapped beside the labels."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        label_style = "red" if label.startswith(("no ", "BAD")) else "cyan"
        body = Text(safe(text), style="yellow" if label == "note" else "")
        grid.add_row(Text(" " * indent + safe(label), style=label_style), body)
    _emit(console, grid)


def _emit(console: Console, what: object) -> None:
    """Print; off a terminal without the blanks that pad a table's lines."""
    if console.is_terminal:
        console.print(what)
        return
    with console.capture() as capture:
        console.print(what)
    console.file.write("".join(line.rstrip() + "\n" for line in capture.get().splitlines()))


def pairs_plain(rows: Sequence[tuple[str, str]]) -> str:
    """The same as plain ASCII."""
    return "\n".join(_plain_pairs(rows)) + "\n"


def _plain_pairs(rows: Sequence[tuple[str, str]], indent: str = "") -> list[str]:
    """Labels and wrapped texts; a label that is too long stands on a line of its own."""
    labels = [plain(label) for label, _ in rows]
    width = min(max(map(len, labels), default=0), PLAIN_LABEL_COLUMNS)
    out = []
    for label, (_, text) in zip(labels, rows, strict=True):
        head = f"{indent}{label:<{width}}  "
        if len(label) > width:
            out += textwrap.wrap(indent + label, PLAIN_COLUMNS, break_on_hyphens=False)
            head = f"{indent}{'':<{width}}  "
        out += textwrap.wrap(
            plain(text) or "-", PLAIN_COLUMNS, initial_indent=head, subsequent_indent=" " * len(head),
            break_on_hyphens=False,
        )  # fmt: skip
    return out


def _plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as narrow as their cells, which lose their blanks; a long first cell stands on a line of its own.

    When the numbers alone are too wide, each row becomes a paragraph.
    """
    texts = [[plain(row[0]), plain(row[1]), *(plain(cell).replace(" ", "") for cell in row[2:])] for row in rows]
    widths = [max(len(row[i]) for row in [list(columns), *texts]) for i in range(len(columns))]
    room = PLAIN_COLUMNS - sum(widths[1:]) - (len(columns) - 1)
    if room < len(columns[0]):
        return _plain_pairs(
            [
                (row[0], ", ".join(f"{name} {cell}" for name, cell in zip(columns[1:], row[1:], strict=True)))
                for row in texts
            ]
        )
    widths[0] = min(widths[0], room)

    def line(cells: Sequence[str]) -> list[str]:
        first = cells[0] if len(cells[0]) <= widths[0] else ""
        body = [f"{first:<{widths[0]}}", f"{cells[1]:<{widths[1]}}"]
        body += [f"{cell:>{width}}" for cell, width in zip(cells[2:], widths[2:], strict=True)]
        return [*([] if first else _wrap(cells[0])), " ".join(body)]

    out = [*line(columns), "-" * (sum(widths) + len(widths) - 1)]
    for row in texts:
        out += line(row)
    return out


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, PLAIN_COLUMNS, break_on_hyphens=False) or [""]
