"""`firsttouch pft`: the page-fault test, for real on this host or in the model, in the classic columns."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from firsttouch.cli import terminal

if TYPE_CHECKING:
    from firsttouch.workload.generators.pft import PftRow


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("pft", short_help="The page-fault test, for real or in the model.")(pft)


def pft(
    gib: Annotated[float, typer.Option(metavar="G", help="Memory of all threads together.")] = 1.0,
    reps: Annotated[int, typer.Option(metavar="R", help="Repetitions, each a child of its own.")] = 1,
    threads: Annotated[str, typer.Option(metavar="N,...", help="Threads; a row for each number.")] = "1",
    lines: Annotated[
        str, typer.Option(metavar="L,...", help="Cache lines to write in each page touched; a row for each number.")
    ] = "1",
    stride: Annotated[
        str, typer.Option(metavar="S", help="From touch to touch; `page` touches each page.", show_default=True)
    ] = "16KiB",
    machine: Annotated[
        str | None, typer.Option(metavar="M", help="In the model: a machine's name or file. Default: this host's.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="P", help="In the model: the policy. Default: linux-6.18.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Both: for real, and in the model beside it.")] = False,
    huge: Annotated[bool, typer.Option("--huge", help="For real: ask for transparent huge pages.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fault in memory as fast as N threads can, and print faults per CPU second and per wall second.

    Without --machine and --policy it runs on this host; with either of them in the model. The stride of the published
    tables is 16 KiB whatever the page size, and their rates count all pages: docs/howto/pft.md.
    """
    from firsttouch.whatif import pft as work

    in_model = machine is not None or policy is not None
    for_real = compare or not in_model
    if huge and not for_real:
        terminal.usage("--huge is for a real run; in the model the policy decides", "--policy +thp")
    counts = _numbers(threads, "--threads"), _numbers(lines, "--lines")
    with terminal.StepProgress() as progress:
        measured: list[PftRow] = []
        modelled: list[PftRow] = []
        empty_s, warning = None, ""
        host_tests = work.tests_of(gib, reps, *counts, work.stride_of(stride, os.sysconf("SC_PAGE_SIZE")))
        if in_model or compare:
            model, rules, warning = work.load_model(machine, policy, progress)
            tests = work.tests_of(gib, reps, *counts, work.stride_of(stride, model.page_bytes))
            modelled = work.run_model(tests, model, rules, progress)
        if for_real:
            measured, empty_s = work.run_host(host_tests, huge=huge, progress=progress)
    result = work.PftResult(measured, modelled, empty_s)
    if warning:
        terminal.note(warning)
    if as_json:
        terminal.print_json(result.to_builtins())
    else:
        from firsttouch.report.pft import text

        typer.echo(text(result), nl=False)
    if result.out_of_memory:
        raise typer.Exit(1)


def _numbers(text: str, option: str) -> list[int]:
    """The whole numbers of `1,2,8`."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        terminal.usage(f"{option} {text} is not a list of whole numbers", f"{option} 1,2,4")
