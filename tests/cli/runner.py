"""Runs the command line in this process and keeps what it printed."""

import contextlib
import io
import sys
from dataclasses import dataclass
from unittest import mock

from firsttouch import cli


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def run(*words: object) -> Ran:
    """`firsttouch words...`; whatever it raises besides SystemExit is a bug and goes through."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        mock.patch.object(sys, "argv", ["firsttouch", *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
    assert isinstance(code, int), code
    return Ran(code, out.getvalue(), err.getvalue())


def assert_refused(ran: Ran, code: int = 2) -> None:
    """A user's mistake: one line, at most one hint and some detail below it, nothing on stdout, no traceback."""
    assert ran.code == code, (ran.code, ran.err)
    assert ran.out == ""
    assert "Traceback" not in ran.err
    lines = ran.err.splitlines()
    assert lines[0].startswith("firsttouch"), ran.err
    assert all(line.startswith("  ") for line in lines[1:]), ran.err
    assert len(lines) <= 4, ran.err
