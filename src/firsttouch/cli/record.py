"""`firsttouch record`: run a program, or attach to one, and keep a trace of its first touches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firsttouch.cli import terminal

if TYPE_CHECKING:
    from firsttouch.record.recorder import Progress, Recording

MUCH_BEHIND_BYTES = 32 << 20


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command(
        "record",
        short_help="Record the first touches of a program.",
        cls=terminal.TakesCommand,
        options_metavar="[OPTIONS] -- COMMAND [ARGS]...",
    )(record)


def record(
    ctx: typer.Context,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="F", help="The trace to write.")] = Path(
        "firsttouch.ftt"
    ),
    level: Annotated[
        str,
        typer.Option(metavar="auto|basic|full", help="basic: user-mode faults; full: all faults and unmaps (root)."),
    ] = "auto",
    stacks: Annotated[bool, typer.Option("--stacks", help="Record user call chains.")] = False,
    as_is: Annotated[bool, typer.Option("--as-is", help="Leave huge pages as they are for the program.")] = False,
    pid: Annotated[int | None, typer.Option(metavar="P", help="Attach to a running process instead.")] = None,
    seconds: Annotated[float, typer.Option(metavar="N", help="With --pid: how long.")] = 10.0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing trace.")] = False,
) -> None:
    """Record the first touches of a program, and exit with the program's own exit status.

    Everything after `--` is the program's. With --pid, attach for some seconds instead.
    """
    command = terminal.words_after_dashes(ctx)
    if (command is None) == (pid is None) or command == []:
        terminal.usage("it needs either -- COMMAND or --pid", "firsttouch record -o run.ftt -- python3 script.py")
    if pid is not None and not 0 < seconds <= 86_400:
        terminal.usage(f"cannot attach for {seconds:g} seconds", "give --seconds a number above 0, up to 86400")
    from firsttouch.record import recorder

    if command is not None:
        result = recorder.record(
            command, output, level=level, stacks=stacks, as_is=as_is, force=force, progress=say_what_is_behind
        )
    else:
        assert pid is not None
        with AttachProgress(seconds) as progress:
            result = recorder.attach(pid, seconds, output, level=level, stacks=stacks, force=force, progress=progress)
    report(result)
    raise typer.Exit(result.exit_status)


def report(result: Recording, *, kept: bool = True) -> None:
    """Say on stderr what was recorded, and what was not; `kept` if the trace stays where it is."""
    from firsttouch.units import format_ns

    text = f"{result.touches:,} touches in {format_ns(result.wall_ns)}, {result.lost:,} lost, level {result.level}"
    terminal.note(f"{text}, in {result.path}" if kept else text)
    if result.why:
        terminal.note(f"level {result.level}, because {result.why}")
    if result.unseen > max(10, 0.001 * result.touches):
        share = result.unseen / (result.touches + result.unseen)
        terminal.note(f"not seen: {result.unseen:,} faults ({share:.1%}), most of them inside system calls")
    if result.exit_status > 128:
        terminal.note(f"the program was ended by signal {result.exit_status - 128}")
    elif result.exit_status:
        terminal.note(f"the program's exit status was {result.exit_status}")


def say_what_is_behind(progress: Progress) -> None:
    """Say that the program has ended and we have not, where that takes more than a moment."""
    if progress.ended and progress.behind_bytes > MUCH_BEHIND_BYTES:
        terminal.note(f"the program has ended; making tables of {progress.behind_bytes >> 20} MiB of records")


class AttachProgress:
    """A bar of the seconds gone by, on a terminal."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> AttachProgress:
        self._bar = terminal.StepProgress()
        return self

    def __call__(self, progress: Progress) -> None:
        """Called by the recorder some times a second."""
        if progress.ended:
            self._bar.close()
            say_what_is_behind(progress)
            return
        done = min(int(progress.elapsed_s), int(self.seconds))
        self._bar(f"s, {progress.nr_bytes >> 10:,} KiB of records", done, max(1, int(self.seconds)))

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        sys.stderr.flush()
