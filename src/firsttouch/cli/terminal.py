"""What verbs share: error lines, progress on stderr, and the words after `--`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperCommand

from firsttouch.errors import FirsttouchError

if TYPE_CHECKING:
    from rich.console import Console

    from firsttouch.trace.store import Trace

_AFTER_DASHES = "firsttouch.command"
_GROUPS = ("trace",)
WIDTH = 100  # where output is no terminal
MANY_TOUCHES = 200_000


class TakesCommand(TyperCommand):
    """A verb whose words after the first `--` are another program's: kept as they are, whatever they look like."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set the words after `--` aside before anything else reads them."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[_AFTER_DASHES] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


def words_after_dashes(ctx: typer.Context) -> list[str] | None:
    """The words after `--`, or None when there was none."""
    words: list[str] | None = ctx.meta.get(_AFTER_DASHES)
    return words


def verb(arguments: Sequence[str]) -> str:
    """The verb that was asked for, as errors name it: `record`, `trace check`."""
    words = [word for word in arguments[:2] if not word.startswith("-")]
    return " ".join(words[: 2 if words[:1] and words[0] in _GROUPS else 1])


def print_error(error: FirsttouchError, where: str) -> None:
    """One line of what could not be done, and what to try, indented."""
    from firsttouch.report.tables import safe

    lines = error.message.splitlines() or [""]
    print(f"firsttouch {where}: ".replace(" :", ":") + safe(lines[0]), file=sys.stderr)
    for line in lines[1:]:
        print(f"  {safe(line.strip())}", file=sys.stderr)
    hint = safe(error.hint.removeprefix("try").lstrip(": "))
    if hint.startswith(("did you mean", "see")):
        print(f"  {hint[0].upper()}{hint[1:]}", file=sys.stderr)
    elif hint:
        print(f"  Try: {hint}", file=sys.stderr)


def usage(message: str, hint: str) -> NoReturn:
    """The user asked for something that does not make sense: exit code 2."""
    raise FirsttouchError(message, hint)


def console(*, stderr: bool = False) -> Console:
    """A rich console: as wide as the terminal, or `WIDTH` where there is none."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else WIDTH, highlight=False, soft_wrap=False)


def note(text: str) -> None:
    """A line on stderr that is worth keeping."""
    print(f"firsttouch: {text}", file=sys.stderr, flush=True)


def open_trace(path: Path) -> Trace:
    """A trace for reading; says so when what a killed recorder left has to be folded in first."""
    from firsttouch.trace.store import Trace

    said: list[int] = []

    def progress(touches: int) -> None:
        if touches >= MANY_TOUCHES and not said:
            said.append(touches)
            note(f"the recorder of {path} was killed; making tables of what it left")

    return Trace(path, progress)


class StepProgress:
    """Progress of `whatif`: lines worth keeping are printed; steps move a bar, on a terminal only."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, text: str, done: int = 0, total: int = 0) -> None:
        """See `whatif.evaluate.Progress`."""
        if not total:
            note(text)
        elif sys.stderr.isatty():
            if self._bar is None:
                from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

                columns = (BarColumn(bar_width=24), TaskProgressColumn(), TextColumn("{task.description}"))
                self._bar = Progress(*columns, console=console(stderr=True), transient=True)
                self._bar.start()
                self._task = self._bar.add_task(text, total=total)
            self._bar.update(self._task, completed=done, description=text)

    def share(self, text: str, share: float) -> None:
        """The same for work that knows the share it has done, 0 to 1."""
        self(text, int(share * 100), 100)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> StepProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def stdout_to_stderr(wanted: bool = True) -> Iterator[None]:
    """While a program is recorded, send its output to stderr, so that stdout holds our JSON alone."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def check_new(path: Path | None, force: bool) -> None:
    """Refuse a file that exists before the work that would fill it, not after."""
    if path is not None and path.exists() and not force:
        raise FirsttouchError(f"{path} exists already", "use --force to replace it, or -o to name another file")


def print_json(tree: object) -> None:
    """JSON on stdout."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(tree), indent=2).decode())
