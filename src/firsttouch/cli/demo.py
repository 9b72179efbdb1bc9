"""`firsttouch demo`: the main job on a real program that ships, without arguments."""

from __future__ import annotations

import sys
import tempfile
from importlib import resources
from pathlib import Path

import typer

from firsttouch.cli import terminal


def add_to(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("demo", short_help="The main job on a real program that ships.")(demo)


def demo() -> None:
    """Record a NumPy image pipeline (or take its bundled trace, where recording is not allowed) and ask what-if."""
    from firsttouch.cli.record import report
    from firsttouch.cli.whatif import Options, show
    from firsttouch.errors import NotHere
    from firsttouch.record import recorder

    options = Options(None, None)
    bundled = resources.files("firsttouch") / "bundled"
    with tempfile.TemporaryDirectory(prefix="firsttouch-") as folder, resources.as_file(bundled) as files:
        path = Path(folder) / "pipeline.ftt"
        try:
            terminal.note("recording a NumPy image pipeline, examples/pipeline.py, for about a second")
            report(recorder.record([sys.executable, str(files / "pipeline.py")], path), kept=False)
        except NotHere as error:
            terminal.note(f"recording is not possible here: {error.message.splitlines()[0]}")
            if error.hint:
                terminal.note(f"to change that: {error.hint}")
            terminal.note("showing a trace of the same program that was recorded elsewhere")
            path = files / "pipeline.ftt"
        show(path, options)
        terminal.note("now your own program: firsttouch whatif -- COMMAND [ARGS]")
