"""The command line: one file a verb. A verb parses, calls, and prints; nothing is computed here.

Exit codes: 0 done; 1 the answer is no; 2 usage; 3 this machine cannot. A FirsttouchError becomes one line and a hint.
Verbs import what they need when they run, so that `--help` stays quick.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from firsttouch import __version__
from firsttouch.cli import (
    calibrate,
    demo,
    doctor,
    machines,
    pft,
    policies,
    record,
    report,
    run,
    study,
    trace,
    verify,
    whatif,
)
from firsttouch.errors import FirsttouchError

app = typer.Typer(
    name="firsttouch",
    help="What the first touch of every page costs a program, and what would make it cheap.",
    epilog="Start with: firsttouch demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
demo.add_to(app)
whatif.add_to(app)
verify.add_to(app)
record.add_to(app)
trace.add_to(app)
report.add_to(app)
run.add_to(app)
calibrate.add_to(app)
doctor.add_to(app)
policies.add_to(app)
machines.add_to(app)
pft.add_to(app)
study.add_to(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"firsttouch {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """What the first touch of every page costs a program, and what would make it cheap."""


def main() -> None:
    """Run the command line; the entry point of `firsttouch`."""
    try:
        app(prog_name="firsttouch")
    except FirsttouchError as error:
        from firsttouch.cli import terminal

        terminal.print_error(error, terminal.verb(sys.argv[1:]))
        sys.exit(error.exit_code)
