"""Machine files of hosts: kept by fingerprint, found again, never half written, never overwritten unasked."""

from pathlib import Path

import msgspec
import pytest

from firsttouch import machine as machines
from firsttouch.errors import FirsttouchError
from firsttouch.host import probe, store
from firsttouch.machine import Machine


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def here() -> Machine:
    return msgspec.structs.replace(machines.load("vm-2cpu-zen4"), fingerprint=probe.facts().fingerprint)


def test_nothing_is_found_before_anything_was_measured(data: Path) -> None:
    assert store.find() is None


def test_what_was_saved_is_found(data: Path, here: Machine) -> None:
    path = store.save(here)
    assert path == store.machine_path(here.fingerprint)
    assert store.find() == here
    again = msgspec.structs.replace(here, summary="measured again")
    store.save(again)
    assert store.find() == again
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]  # nothing temporary is left


def test_another_machine_is_not_found(data: Path, here: Machine) -> None:
    store.save(msgspec.structs.replace(here, fingerprint="another"))
    assert store.find() is None


@pytest.mark.parametrize("text", ["", "schema = 1\n", "not toml", "\xff"])
def test_a_corrupt_file_is_an_error_that_says_what_to_do(data: Path, here: Machine, text: str) -> None:
    path = store.save(here)
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(FirsttouchError) as error:
        store.find()
    assert str(path) in error.value.message
    assert "firsttouch calibrate" in error.value.hint


def test_a_named_file_is_overwritten_only_by_force(data: Path, here: Machine) -> None:
    path = data / "mine.toml"
    path.write_text("precious")
    with pytest.raises(FirsttouchError, match="exists") as error:
        store.save(here, path)
    assert "--force" in error.value.hint
    assert path.read_text() == "precious"
    assert store.save(here, path, force=True) == path
    assert machines.load(path) == here


def test_a_new_named_file(data: Path, here: Machine) -> None:
    assert machines.load(store.save(here, data / "new.toml")) == here
    assert [entry.name for entry in data.iterdir()] == ["new.toml"]


def test_a_file_system_without_links(data: Path, here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    path = data / "new.toml"
    assert machines.load(store.save(here, path)) == here
    with pytest.raises(FirsttouchError, match="exists"):
        store.save(here, path)


def test_a_folder_that_is_not_there(data: Path, here: Machine) -> None:
    with pytest.raises(FirsttouchError, match="cannot write"):
        store.save(here, data / "absent" / "new.toml")


def test_a_preset_has_no_place_of_its_own(data: Path) -> None:
    with pytest.raises(FirsttouchError, match="fingerprint"):
        store.save(machines.load("vm-2cpu-zen4"))


def test_a_relative_data_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "data")  # as the specification of base directories demands
    monkeypatch.setenv("HOME", "/home/someone")
    assert store.machine_path("f") == Path("/home/someone/.local/share/firsttouch/machines/f.toml")
