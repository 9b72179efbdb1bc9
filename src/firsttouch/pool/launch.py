"""Starting a Python program with the pool beneath its NumPy, without a change to the program.

The program runs as it would otherwise - the same interpreter, `__main__`, arguments, exit status - in an environment
that has it import `site/sitecustomize.py` at its start. Its own Python children have the pool as well.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from firsttouch.errors import FirsttouchError
from firsttouch.units import parse_bytes

SITE = Path(__file__).parent / "site"
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")


def environment(
    limit: str = "", populate: str = "", report: bool = False, machine: str = "", base: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """`base` with the pool on: its limit, what to populate, whether to report, and by which machine's costs."""
    for size in (limit, populate):
        if size:
            parse_bytes(size)
    paths = [str(SITE), *(path for path in base.get("PYTHONPATH", "").split(os.pathsep) if path)]
    wanted = {
        "FIRSTTOUCH_POOL": limit or "1",
        "FIRSTTOUCH_POOL_POPULATE": populate,
        "FIRSTTOUCH_POOL_REPORT": "1" if report else "",
        "FIRSTTOUCH_POOL_MACHINE": machine,
        "PYTHONPATH": os.pathsep.join(paths),
    }
    return {**base, **{name: value for name, value in wanted.items() if value}}


def command(words: Sequence[str]) -> list[str]:
    """The command of `SCRIPT ARGS...`, `-m MODULE ARGS...`, `-c CODE`, or `python3 ...` with any of these.

    Raises FirsttouchError where there is no such script.
    """
    if not words:
        raise FirsttouchError("there is no program to run", "firsttouch run -- script.py its arguments")
    first = words[0]
    if _PYTHON.fullmatch(os.path.basename(first)):
        return list(words)
    if first.startswith("-"):
        if first not in ("-m", "-c") or len(words) < 2:
            raise FirsttouchError(f"cannot run {first!r}", "give SCRIPT, -m MODULE or -c CODE")
    elif not Path(first).exists():
        raise FirsttouchError(f"there is no script {first}", "firsttouch run -- script.py its arguments")
    return [sys.executable, *words]


def execute(words: Sequence[str], env: Mapping[str, str]) -> None:
    """Become the program. Returns only where it cannot be started, with a FirsttouchError."""
    argv = command(words)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(argv[0], argv, dict(env))
    except OSError as error:
        raise FirsttouchError(f"cannot run {argv[0]}: {error.strerror}", "is it on PATH?") from None
