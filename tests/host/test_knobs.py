"""Settings come back: after an error, after SIGKILL of the setter, after SIGKILL of setter and guard."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from firsttouch.errors import FirsttouchError, NotHere
from firsttouch.host import knobs

# Sets two knobs, says so, and waits to be killed.
SETTER = """
import sys
from pathlib import Path
from firsttouch.host import knobs
with knobs.set_knobs({sys.argv[2]: sys.argv[3]}, Path(sys.argv[1])):
    print("set", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def knob(tmp_path: Path) -> Path:
    path = tmp_path / "enabled"
    path.write_text("always inherit [madvise] never\n")
    return path


def start_setter(state: Path, knob: Path, value: str) -> subprocess.Popen[bytes]:
    setter = subprocess.Popen(
        [sys.executable, "-c", SETTER, str(state), str(knob), value], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert setter.stdout is not None and setter.stdout.readline() == b"set\n"
    return setter


def guards_of(setter: subprocess.Popen[bytes]) -> list[int]:
    children = Path(f"/proc/{setter.pid}/task/{setter.pid}/children").read_text().split()
    return [int(child) for child in children]


def wait_for_exit(process_handle: int) -> None:
    ready, _, _ = select.select([process_handle], [], [], 30)
    assert ready, "the guard is still there after 30 s"


def test_the_choice_is_the_word_in_brackets() -> None:
    assert knobs.choice("always [madvise] never\n") == "madvise"
    assert knobs.choice("always defer [defer+madvise] never\n") == "defer+madvise"
    assert knobs.choice("65536\n") == "65536"


def test_values_are_set_within_the_block_and_restored_after(tmp_path: Path, knob: Path) -> None:
    with knobs.set_knobs({knob: "always"}, tmp_path) as guard:
        assert knob.read_text() == "always"
        assert json.loads((tmp_path / "knobs.json").read_text()) == {str(knob): "madvise"}  # K1
        guard.set({knob: "never"})
        assert knob.read_text() == "never"
    assert knob.read_text() == "madvise"
    assert (tmp_path / "knobs.json").read_text() == ""


def test_an_exception_restores(tmp_path: Path, knob: Path) -> None:
    with pytest.raises(ZeroDivisionError), knobs.set_knobs({knob: "always"}, tmp_path):
        raise ZeroDivisionError
    assert knob.read_text() == "madvise"


def test_a_refused_value_restores_what_was_set_before_it(tmp_path: Path, knob: Path) -> None:
    full = Path("/dev/full")  # takes no value
    with pytest.raises(FirsttouchError), knobs.guard_knobs([knob], tmp_path) as guard:
        guard.old[str(full)] = ""
        guard.set({knob: "always", full: "x"})
    assert knob.read_text() == "madvise"


def test_an_unguarded_knob_is_not_set(tmp_path: Path, knob: Path) -> None:
    other = tmp_path / "other"
    other.write_text("1")
    with knobs.guard_knobs([knob], tmp_path) as guard, pytest.raises(KeyError):
        guard.set({other: "2"})
    assert other.read_text() == "1"


def test_a_missing_knob_changes_nothing(tmp_path: Path, knob: Path) -> None:
    with pytest.raises(NotHere), knobs.set_knobs({knob: "always", tmp_path / "absent": "1"}, tmp_path):
        pass
    assert knob.read_text() == "always inherit [madvise] never\n"


def test_one_process_at_a_time(tmp_path: Path, knob: Path) -> None:
    with knobs.set_knobs({knob: "always"}, tmp_path):
        with pytest.raises(knobs.Busy), knobs.set_knobs({knob: "never"}, tmp_path):  # K3
            pass
        assert knobs.recover(tmp_path) == []
        assert knob.read_text() == "always"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_setter_is_cleaned_up_after_by_its_guard(tmp_path: Path, knob: Path, how: signal.Signals) -> None:
    setter = start_setter(tmp_path, knob, "always")
    assert knob.read_text() == "always"
    (guard,) = guards_of(setter)
    handle = os.pidfd_open(guard)
    setter.send_signal(how)
    setter.communicate()
    wait_for_exit(handle)
    os.close(handle)
    assert knob.read_text() == "madvise"
    assert (tmp_path / "knobs.json").read_text() == ""


def test_the_next_start_restores_when_setter_and_guard_were_killed(tmp_path: Path, knob: Path) -> None:
    setter = start_setter(tmp_path, knob, "always")
    (guard,) = guards_of(setter)
    handle = os.pidfd_open(guard)
    os.kill(guard, signal.SIGKILL)
    setter.kill()
    setter.communicate()
    wait_for_exit(handle)
    os.close(handle)
    assert knob.read_text() == "always"
    assert knobs.recover(tmp_path) == [str(knob)]
    assert knob.read_text() == "madvise"
    assert knobs.recover(tmp_path) == []


def test_a_torn_state_file_was_never_acted_upon(tmp_path: Path, knob: Path) -> None:
    (tmp_path / "knobs.json").write_text('{"/sys/kernel/mm/tra')
    assert knobs.recover(tmp_path) == []
    assert (tmp_path / "knobs.json").read_text() == ""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="switching huge page sizes needs root")
def test_a_real_knob_comes_back_after_sigkill(tmp_path: Path) -> None:
    sizes = knobs.mthp()
    if "16kB" not in sizes:
        pytest.skip("this kernel has no 16 KiB huge pages")
    path = knobs.mthp_knob(16384)
    wanted = "never" if sizes["16kB"] == "madvise" else "madvise"
    setter = start_setter(tmp_path, path, wanted)
    (guard,) = guards_of(setter)
    handle = os.pidfd_open(guard)
    during = knobs.read_knob(path)
    setter.kill()
    setter.communicate()
    wait_for_exit(handle)
    os.close(handle)
    assert (during, knobs.read_knob(path)) == (wanted, sizes["16kB"])
