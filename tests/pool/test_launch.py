"""Programs started with the pool beneath them, unchanged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from firsttouch import _jit
from firsttouch.errors import FirsttouchError
from firsttouch.pool import launch, limits

MIB = 1 << 20
SHOW = (
    "import sys, numpy as np, firsttouch.pool\n"
    "pool = firsttouch.pool.installed()\n"
    "print(__name__, sys.argv[1:], pool and pool.limit_bytes >> 20, np.zeros(2**20).sum())\n"
    "sys.exit(7)\n"
)
needs_jit = pytest.mark.skipif(not _jit.JIT, reason="the pool is compiled code")


def start(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def test_what_may_be_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.touch()
    assert launch.command([str(script), "-x"]) == [sys.executable, str(script), "-x"]
    assert launch.command(["-m", "module", "-x"]) == [sys.executable, "-m", "module", "-x"]
    assert launch.command(["python3.12", "-c", "pass"]) == ["python3.12", "-c", "pass"]
    for words in ([], ["-x"], ["-m"], [str(tmp_path / "missing.py")]):
        with pytest.raises(FirsttouchError):
            launch.command(words)


def test_the_environment_keeps_what_there_was() -> None:
    base = {"PYTHONPATH": "/some/where", "HOME": "/root"}
    made = launch.environment("1GiB", "32MiB", report=True, base=base)
    assert made["PYTHONPATH"] == f"{launch.SITE}:/some/where"
    assert made["HOME"] == "/root"
    assert (made["FIRSTTOUCH_POOL"], made["FIRSTTOUCH_POOL_POPULATE"], made["FIRSTTOUCH_POOL_REPORT"]) == (
        "1GiB", "32MiB", "1",
    )  # fmt: skip
    assert launch.environment(base={})["FIRSTTOUCH_POOL"] == "1"
    with pytest.raises(FirsttouchError):
        launch.environment("much")


@needs_jit
@pytest.mark.parametrize(
    "verb", [("-m", "firsttouch", "run", "--pool-limit", "64MiB", "--"), ("-m", "firsttouch.pool")]
)
@pytest.mark.parametrize("program", [("show.py",), ("-m", "show")])
def test_a_program_runs_as_it_would_without(tmp_path: Path, verb: tuple[str, ...], program: tuple[str, ...]) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "sitecustomize.py").write_text("print('the hidden one')\n")
    done = start(*verb, *program, "--an", "option", cwd=tmp_path, PYTHONPATH=str(tmp_path), FIRSTTOUCH_POOL="")
    lines = done.stdout.splitlines()
    assert lines[-2:-1] == ["the hidden one"]
    limit = "64" if "run" in verb else lines[-1].split()[-2]
    assert int(limit) > 16 and lines[-1] == f"__main__ ['--an', 'option'] {limit} 0.0"
    assert done.returncode == 7


@needs_jit
@pytest.mark.parametrize("wanted, limit", [("0", "None"), ("", "None"), ("32MiB", "32")])
def test_the_switch_in_the_environment(tmp_path: Path, wanted: str, limit: str) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    done = start("show.py", cwd=tmp_path, PYTHONPATH=str(launch.SITE), FIRSTTOUCH_POOL=wanted)
    assert done.stdout == f"__main__ [] {limit} 0.0\n"


@pytest.mark.parametrize(
    "words, said",
    [
        (("--",), "it needs -- SCRIPT"),
        (("--", "missing.py"), "there is no script missing.py"),
        (("--pool-limit", "much", "--", "-c", "pass"), "'much' is not a size"),
    ],
)
def test_mistakes_are_one_line_and_a_hint(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = start("-m", "firsttouch", "run", *words, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("firsttouch run: ") and said in first and second.startswith("  Try: ")


GROUP = "sys/fs/cgroup/a/b"


@pytest.mark.parametrize(
    "files, available",
    [
        ({}, 900),
        ({f"{GROUP}/memory.max": "max", f"{GROUP}/memory.current": "1"}, 900),
        ({f"{GROUP}/memory.max": str(100 * MIB), f"{GROUP}/memory.current": str(40 * MIB)}, 60),
        ({"sys/fs/cgroup/a/memory.max": str(50 * MIB), "sys/fs/cgroup/a/memory.current": str(60 * MIB)}, 0),
    ],
)
def test_what_is_available_is_what_the_tightest_group_leaves(
    tmp_path: Path, files: dict[str, str], available: int
) -> None:
    files = {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {900 * 1024} kB\n", "proc/self/cgroup": "0::/a/b", **files}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert limits.available_bytes(tmp_path) == available * MIB


def test_caches_are_read_from_the_system_or_are_the_usual_ones(tmp_path: Path) -> None:
    assert limits.cache_bytes(tmp_path) == (MIB, 8 * MIB)
    for index, (level, size, kind) in enumerate(
        (("1", "32K", "Data"), ("2", "512K", "Unified"), ("3", "16M", "Unified"))
    ):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("size", size), ("type", kind)):
            (folder / name).write_text(text + "\n")
    assert limits.cache_bytes(tmp_path) == (512 << 10, 16 * MIB)
