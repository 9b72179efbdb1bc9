"""`firsttouch calibrate`: measure what first touches cost on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firsttouch.cli import terminal


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("calibrate", short_help="Measure what first touches cost on this machine.")(calibrate)


def calibrate(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="F", help="Default: this host's own place, replaced.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Under 10 s instead of under 60 s; less certain.")] = False,
    accept_noise: Annotated[
        bool, typer.Option("--accept-noise", help="Keep medians that spread by over 10 %.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file named by -o.")] = False,
) -> None:
    """Measure what first touches cost on this machine, and keep it for `whatif`."""
    terminal.check_new(output, force)
    from firsttouch.host import calibrate as host
    from firsttouch.host import store
    from firsttouch.record.cost import record_cost_ns

    with terminal.StepProgress() as progress:
        machine = host.calibrate(
            quick=quick, accept_noise=accept_noise, record_cost=record_cost_ns, progress=progress.share
        )
    path = store.save(machine, output, force=force)
    terminal.note(f"the machine file is {path}; see it: firsttouch machines --show {path}")
