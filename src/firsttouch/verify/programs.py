"""The programs that predictions are checked with: programs.toml, made ready to run in a folder.

A program that this machine does not have is skipped, with what would install it.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import msgspec

from firsttouch.errors import FirsttouchError
from firsttouch.verify.check import Subject

_EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the manifest; see programs.toml."""

    name: str
    summary: str
    obtain: str
    command: list[str]
    needs: list[str] = []
    modules: list[str] = []
    prepare: str = ""
    before: str = ""
    env: dict[str, str] = {}
    opts_in: list[str] = []


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    program: list[Program]


def manifest() -> list[Program]:
    """All programs, in the order of the file."""
    text = (resources.files(__package__) / "programs.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Manifest).program


def choose(names: Sequence[str]) -> list[Program]:
    """The programs named, or all for `all`. Raises FirsttouchError for names that are not in the manifest."""
    known = {program.name: program for program in manifest()}
    if list(names) == ["all"]:
        return list(known.values())
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"see the programs: all, {', '.join(known)}"
            raise FirsttouchError(f"there is no program {name!r} in the manifest", hint)
    return [known[name] for name in dict.fromkeys(names)]


def missing(program: Program, examples: Path = _EXAMPLES) -> str:
    """What this machine lacks to run a program, and how it is had; "" if nothing."""
    lacks = [name for name in program.needs if shutil.which(name) is None]
    lacks += [f"Python's {name}" for name in program.modules if importlib.util.find_spec(name) is None]
    if any("{examples}" in word for word in program.command) and not examples.is_dir():
        return "the examples are part of the source tree, not of the installed package"
    return f"there is no {', no '.join(lacks)}: {program.obtain}" if lacks else ""


def listed(program: Program) -> Subject:
    """A program as the manifest has it, with nothing made."""
    return Subject(program.name, program.command, skipped=missing(program))


def ready(program: Program, folder: Path) -> Subject:
    """A program with its files made in `folder`. Raises FirsttouchError when making them fails."""
    why = missing(program)
    if why:
        return Subject(program.name, program.command, skipped=why)
    work = folder / program.name
    work.mkdir()
    bundled = resources.files("firsttouch") / "bundled"
    places = {"{work}": str(work), "{python}": sys.executable, "{examples}": str(_EXAMPLES), "{bundled}": str(bundled)}

    def placed(word: str) -> str:
        for mark, place in places.items():
            word = word.replace(mark, place)
        return word

    if program.prepare:
        done = subprocess.run(
            ["sh", "-c", placed(program.prepare)], cwd=work, env={**os.environ, **program.env},
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise FirsttouchError(f"cannot prepare {program.name}: {last}", "leave it out: --programs NAME,...")
    return Subject(
        name=program.name,
        command=[placed(word) for word in program.command],
        cwd=str(work),
        env=program.env,
        before=["sh", "-c", placed(program.before)] if program.before else [],
        opts_in=program.opts_in,
    )
