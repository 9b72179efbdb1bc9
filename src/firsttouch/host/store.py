"""Machine files of measured hosts, one per fingerprint, under the user's data folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from firsttouch import machine as machines
from firsttouch.errors import FirsttouchError
from firsttouch.host import probe
from firsttouch.machine import Machine


def machine_path(fingerprint: str) -> Path:
    """Where the machine file of the host with this fingerprint is kept."""
    data = os.environ.get("XDG_DATA_HOME", "")
    home = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
    return home / "firsttouch" / "machines" / f"{fingerprint}.toml"


def find() -> Machine | None:
    """The machine measured on this host, or None if it never was. Raises FirsttouchError for a corrupt file."""
    path = machine_path(probe.facts().fingerprint)
    try:
        toml = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FirsttouchError(f"cannot read {path}: {error.strerror}", "measure again: firsttouch calibrate") from None
    try:
        return machines.decode(toml, str(path))
    except FirsttouchError as error:
        raise FirsttouchError(error.message, "measure again: firsttouch calibrate") from None


def save(machine: Machine, path: Path | str | None = None, force: bool = False) -> Path:
    """Write a machine file, whole or not at all; returns where.

    Without `path` it replaces what the same host measured before. A `path` that exists is left alone unless `force`.
    Raises FirsttouchError when it exists or cannot be written.
    """
    target = machine_path(machine.fingerprint) if path is None else Path(path)
    if path is None and not machine.fingerprint:
        raise FirsttouchError(
            f"machine {machine.name} has no fingerprint, so it has no place of its own", "name a file: -o FILE"
        )
    try:
        if path is None:
            target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(machines.encode(machine))
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            if path is None or force:
                temporary.replace(target)
            else:
                _place(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        raise FirsttouchError(f"{target} exists", "replace it with --force, or name another file") from None
    except OSError as error:
        raise FirsttouchError(f"cannot write {target}: {error.strerror}", "name another file: -o FILE") from None
    return target


def _place(temporary: Path, target: Path) -> None:
    """Give a finished file its name. Raises FileExistsError when that is taken, also when it was taken just now."""
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: the name may be taken between these two lines
        if os.path.lexists(target):
            raise FileExistsError(target) from None
        temporary.replace(target)
