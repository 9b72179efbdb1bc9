"""One self-contained HTML file: the what-if table, where the touches were, and when. Plotly's script is in it.

Nothing that came from a trace or a policy reaches the page unescaped: text goes through `html.escape`, data for the
charts through `_json`, which leaves no `<` for a browser to find.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

from firsttouch.report import summary, tables
from firsttouch.whatif.advice import saved_ratio

if TYPE_CHECKING:
    from firsttouch.trace.store import Trace
    from firsttouch.whatif import WhatIf

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #5d6b7a; --line: #d8dee5; --good: #17713b; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ec; --soft: #9aa7b4; --line: #38434e; --good: #6fce94; --bad: #ff8a80; }
  body { background: #14191f; }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
.advice { font-size: 1.1rem; border-left: 4px solid #2f6fb0; padding: .4rem .9rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child, th.left, td.left { text-align: left; }
tr.now { font-weight: 600; } .gain { color: var(--good); } .loss { color: var(--bad); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; }
dt { color: var(--soft); } dd { margin: 0; }
dd, td.left { overflow-wrap: anywhere; white-space: normal; } code { font-size: .92em; } .scroll { overflow-x: auto; }
footer { color: var(--soft); margin-top: 3rem; font-size: .85rem; }
""".strip()

_DRAW = """
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const ink = dark ? "#e4e8ec" : "#1c2733", line = dark ? "#38434e" : "#d8dee5";
for (const chart of CHARTS) {
  const axis = { gridcolor: line, zerolinecolor: line, automargin: true };
  const layout = Object.assign({ paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink }, margin: { l: 60, r: 20, t: 10, b: 50 }, height: 340,
    legend: { orientation: "h", y: 1.15 } }, chart.layout);
  layout.xaxis = Object.assign({}, axis, chart.layout.xaxis);
  layout.yaxis = Object.assign({}, axis, chart.layout.yaxis);
  Plotly.newPlot(chart.id, chart.data, layout, { responsive: true, displaylogo: false });
}
""".strip()


def render(result: WhatIf, trace: Trace | None = None) -> str:
    """The report of a what-if; with the trace, also what it touched and when."""
    from plotly.offline import get_plotlyjs

    title = f"First touches of {tables.safe(' '.join(result.trace.command) or result.trace.name)}"
    charts = [_times_chart(result), _memory_chart(result)]
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="advice">{escape(result.advice)}</p>',
        _pairs(tables.whatif_header(result)),
        "<h2>What each policy would do</h2>",
        _whatif_table(result),
        _pairs(tables.MEANINGS),
        "<h2>Where the time goes</h2>", '<div id="times"></div>',
        "<h2>Memory</h2>", '<div id="memory"></div>',
    ]  # fmt: skip
    if trace is not None:
        charts.append(_rate_chart(trace))
        sections += ["<h2>Touches over time</h2>", '<div id="rate"></div>']
        sections += ["<h2>Where the touches are</h2>", _counts("mapping", summary.mappings(trace, 20))]
        functions = summary.functions(trace)
        if functions:
            sections += ["<h2>Functions that touch</h2>", _counts("function", functions)]
        sections += ["<h2>Recording</h2>", _pairs(summary.facts(trace))]
    commands = tables.whatif_commands(result)
    if commands:
        rows = "".join(f"<dt>{escape(name)}</dt><dd><code>{escape(text)}</code></dd>" for name, text in commands)
        sections += ["<h2>How to have it</h2>", f"<dl>{rows}</dl>"]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            *sections,
            "<footer>Made by firsttouch. Times are those of the model on the machine named above.</footer>",
            f"<script>{get_plotlyjs()}</script>",
            f"<script>const CHARTS = {_json(charts)};\n{_DRAW}</script>",
            "</body></html>\n",
        ]
    )


def _whatif_table(result: WhatIf) -> str:
    left = (0, 1)
    head = "".join(f'<th class="{"left" * (i in left)}">{escape(name)}</th>' for i, name in enumerate(tables.COLUMNS))
    body = []
    for row, outcome in zip(tables.whatif_cells(result), tables.whatif_order(result), strict=True):
        gain = round(saved_ratio(outcome, result.reference), 3)  # as shown
        cells = []
        for i, cell in enumerate(row):
            style = "left" if i in left else "gain" if i == 5 and gain > 0 else "loss" if i == 5 and gain < 0 else ""
            cells.append(f'<td class="{style}">{escape(cell)}</td>')
        body.append(f'<tr class="{"now" * (outcome.policy == result.now)}">{"".join(cells)}</tr>')
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _counts(label: str, rows: Iterable[tuple[str, int]]) -> str:
    body = "".join(
        f'<tr><td class="left">{escape(tables.safe(name))}</td><td>{number:,}</td></tr>' for name, number in rows
    )
    return f"<table><thead><tr><th>{escape(label)}</th><th>touches</th></tr></thead><tbody>{body}</tbody></table>"


def _pairs(rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(f"<dt>{escape(label)}</dt><dd>{escape(tables.safe(text))}</dd>" for label, text in rows)
    return f"<dl>{body}</dl>"


def _names(result: WhatIf) -> list[str]:
    """Policies best first; escaped, because Plotly reads some markup in labels."""
    return [escape(tables.safe(tables.short_name(outcome.policy))) for outcome in tables.whatif_order(result)]


def _times_chart(result: WhatIf) -> dict[str, Any]:
    order = tables.whatif_order(result)
    fault = [outcome.fault_ns / 1e6 for outcome in order]
    other = [max(0, outcome.user_ns + outcome.system_ns - outcome.fault_ns) / 1e6 for outcome in order]
    daemon = [outcome.background_ns / 1e6 for outcome in order]
    layout = {"barmode": "stack", "yaxis": {"title": {"text": "CPU time, ms"}}}
    bars = (("fault path", fault, "#d1603d"), ("program", other, "#7a93ac"), ("daemon", daemon, "#b8a13f"))
    return {
        "id": "times",
        "layout": layout,
        "data": [_bar(_names(result), name, y, colour) for name, y, colour in bars],
    }


def _memory_chart(result: WhatIf) -> dict[str, Any]:
    order = tables.whatif_order(result)
    layout = {"barmode": "group", "yaxis": {"title": {"text": "MiB"}}}
    peak = _bar(_names(result), "mapped at the peak", [outcome.peak_bytes / 2**20 for outcome in order], "#4f8a6b")
    idle = _bar(_names(result), "never touched", [outcome.untouched_bytes / 2**20 for outcome in order], "#d3a24f")
    return {"id": "memory", "layout": layout, "data": [peak, idle]}


def _rate_chart(trace: Trace) -> dict[str, Any]:
    x, y = summary.over_time(trace)
    layout = {"xaxis": {"title": {"text": "ms since the start"}}, "yaxis": {"title": {"text": "touches"}}, "bargap": 0}
    return {"id": "rate", "layout": layout, "data": [_bar(x, "touches", y, "#2f6fb0")]}


def _bar(x: Sequence[Any], name: str, y: Sequence[float], colour: str) -> dict[str, Any]:
    return {"type": "bar", "name": name, "x": list(x), "y": list(y), "marker": {"color": colour}}


def _json(tree: object) -> str:
    """JSON that is safe inside a script element."""
    text = msgspec.json.encode(tree).decode()
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text
