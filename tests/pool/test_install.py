"""The pool beneath a NumPy, in a process of its own each time: installing, forks, threads, exits, what it refuses."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PRELUDE = """
import ctypes, os, sys, threading, time
import numpy as np
import firsttouch as ft
from firsttouch.pool.arena import check
MIB = 1 << 20
def owned(pool, array):
    return pool.arena.base_address <= array.ctypes.data < pool.arena.base_address + pool.limit_bytes
def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
"""


def code(text: str) -> str:
    return PRELUDE + textwrap.dedent(text)


def test_importing_needs_no_numba_and_no_numpy(run):
    out = run(
        "import firsttouch as ft, sys; ft.pool; ft.pool.installed(); print({'numba', 'numpy'} & set(sys.modules))"
    )
    assert out == "set()\n"


def test_a_pool_that_was_compiled_before_loads_no_compiler(run):
    install = "import sys, numpy as np, firsttouch as ft; ft.pool.install('64MiB', strict=True)\n"
    run(install)
    out = run(install + "assert not np.zeros(2**23).any(); print({'numba', 'llvmlite', 'scipy'} & set(sys.modules))")
    assert out == "set()\n"


@pytest.mark.slow
def test_with_bounds_checks_numba_loads_the_code(run):
    text = """
    pool = ft.pool.install("64MiB", strict=True)
    assert owned(pool, np.zeros(MIB)) and not np.zeros(MIB).any()
    print("numba" in sys.modules)
    """
    assert run(code(text), FIRSTTOUCH_BOUNDSCHECK="1") == "True\n"


def test_arrays_come_from_the_pool_in_every_thread_until_it_is_taken_out(run):
    out = run(
        code("""
        small, before = np.zeros(10), np.zeros(MIB)
        pool = ft.pool.install("256MiB", threshold="1MiB")
        arrays = [np.zeros(MIB), np.empty(MIB), np.ones(MIB) + 1]
        thread = threading.Thread(target=lambda: arrays.append(np.zeros(MIB)))
        thread.start()
        thread.join()
        assert all(owned(pool, array) for array in arrays) and not owned(pool, before)
        assert not owned(pool, np.zeros(1000)) and not owned(pool, np.zeros(2**26))  # too small, too large
        assert pool.stats().nr_fallbacks == 1
        big = np.arange(MIB)
        big.resize(2 * MIB, refcheck=False)
        assert owned(pool, big) and (big[:MIB] == np.arange(MIB)).all()
        big.resize(10, refcheck=False)
        assert not owned(pool, big) and (big == np.arange(10)).all()
        del before, arrays, big
        assert pool.stats().live_bytes == 0 and check(pool.arena) == []
        ft.pool.uninstall()
        assert ft.pool.installed() is None
        after = np.zeros(MIB)
        assert not owned(pool, after)
        print("fine")
        """)
    )
    assert out == "fine\n"


def test_arrays_outlive_the_pool_they_are_in(run):
    out = run(
        code("""
        first = ft.pool.install("64MiB", threshold="1MiB")
        kept = np.full(MIB, 7)
        ft.pool.uninstall()
        assert not owned(first, np.zeros(MIB))
        second = ft.pool.install("64MiB", threshold="1MiB")
        also = np.full(MIB, 8)
        assert owned(first, kept) and owned(second, also)
        kept.resize(2 * MIB, refcheck=False)
        assert (kept[:MIB] == 7).all() and not owned(first, kept)
        del kept, also
        assert first.stats().live_bytes == second.stats().live_bytes == 0
        ft.pool.uninstall()
        print((np.ones(MIB) + 1).sum())
        """)
    )
    assert out == f"{2.0 * 2**20}\n"


def test_a_context_has_a_pool_of_its_own(run):
    out = run(
        code("""
        default = np._core.multiarray.get_handler_name()
        with ft.pool("64MiB", context=True, threshold="1MiB") as pool:
            inside = np.zeros(MIB)
            elsewhere = []
            thread = threading.Thread(target=lambda: elsewhere.append(np.zeros(MIB)))
            thread.start()
            thread.join()
            assert owned(pool, inside) and not owned(pool, elsewhere[0])
            assert np._core.multiarray.get_handler_name(inside) == "firsttouch_pool"
        assert np._core.multiarray.get_handler_name() == default
        assert not owned(pool, np.zeros(MIB))
        del inside
        with ft.pool("64MiB", threshold="1MiB") as pool:
            assert ft.pool.installed() is pool and owned(pool, np.zeros(MIB))
        assert ft.pool.installed() is None
        print("fine")
        """)
    )
    assert out == "fine\n"


@pytest.mark.parametrize(
    "statement, said",
    [
        ("ft.pool.install('4MiB')", "not installed: a pool of 4 MiB is too small to be of use"),
        ("ft.pool.install('many')", "not installed: 'many' is not a size"),
        ("ft.pool.install(window='noon')", "not installed: 'noon' is not a time of the day"),
        ("ft.pool.install(busy=2)", "not installed: busy is 2"),
        ("np.__version__ = '3.0.0'; ft.pool.install()", "not installed: the pool knows the C API of NumPy 2"),
        ("sys.platform = 'darwin'; ft.pool.install()", "not installed: the pool needs 64-bit Linux"),
        (
            "import struct; struct.calcsize = lambda _: 4; ft.pool.install()",
            "not installed: the pool needs 64-bit Linux",
        ),
        ("sys.implementation.name = 'pypy'; ft.pool.install()", "not installed: the pool needs CPython"),
        (
            "from firsttouch.pool import limits; limits.available_bytes = lambda: 100 * MIB; ft.pool.install('1GiB')",
            "1 GiB is more than there is; it may take 80 MiB",  # a control group's limit
        ),
        (
            "from firsttouch.pool import limits; limits.available_bytes = lambda: 10 * MIB; ft.pool.install('1GiB')",
            "not installed: a pool of 8 MiB is too small to be of use (10 MiB are available)",
        ),
        (
            "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)); ft.pool.install('2GiB')",
            "not installed: cannot map",
        ),
        (
            "ft.pool.install('64MiB'); ft.pool.install('32MiB')",
            "it is installed already, with 64 MiB; that one stays",
        ),
        ("ft.pool.install('900TiB', populate='2MiB')", "is more than there is; it may take"),
    ],
)
def test_what_cannot_be_is_one_line_and_the_program_runs_on(run, statement, said):
    done = run(code(f"{statement}\nprint((np.ones(2**22) + 1).sum())"))
    numbers, lines = done.split("\n", 1)
    assert numbers == f"{2.0 * 2**22}"
    assert lines.count("\n") == 1 and lines.startswith("firsttouch pool: ") and said in lines


def test_strict_raises_and_the_jit_is_needed(run):
    text = """
    try:
        ft.pool.install("64MiB", strict=True)
    except ft.FirsttouchError as error:
        print(error.message)
    """
    assert "the JIT is off" in run(code(text), FIRSTTOUCH_JIT="0")


def test_the_scrubber_zeroes_what_is_free_when_the_program_sleeps(run):
    out = run(
        code("""
        pool = ft.pool.install("128MiB", threshold="1MiB", populate="32MiB", report=True)
        until(lambda: pool.stats().free_zeroed_bytes >= 32 * MIB)
        for _ in range(3):
            dirty = np.full(4 * MIB, 1.0)
            del dirty
            until(lambda: pool.stats().free_unzeroed_bytes == 0)
            assert np.zeros(4 * MIB).max() == 0
        stats = pool.stats()
        assert stats.hits >= 3 and stats.scrubbed_bytes >= 3 * 32 * MIB and stats.populated_bytes >= 32 * MIB
        names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
        assert "ft-scrub\\n" in names
        assert pool.trim() >= 32 * MIB and pool.stats().held_bytes < 2 * MIB
        assert np.zeros(4 * MIB).max() == 0
        ft.pool.uninstall()
        """)
    )
    assert "zeroed in idle time" in out and out.count("\n") == 1


@pytest.mark.parametrize("option", ["load=0", "window='{0}:00-{0}:01'.format((time.localtime().tm_hour + 2) % 24)"])
def test_a_closed_gate_keeps_the_scrubber_from_working(run, option):
    out = run(
        code(f"""
        pool = ft.pool.install("128MiB", threshold="1MiB", decay=None, {option})
        np.ones(MIB)
        until(lambda: pool.arena.word[pool._s.THREAD] == pool._s.RUNNING)
        time.sleep(0.3)  # time in which it would have worked
        assert pool.stats().nr_naps == pool.stats().scrubbed_bytes == pool.stats().populated_bytes == 0
        print("fine")
        """)
    )
    assert out == "fine\n"


def test_memory_that_is_not_used_decays(run):
    out = run(
        code("""
        pool = ft.pool.install("128MiB", threshold="1MiB", populate="4MiB", decay="100ms")
        np.ones(8 * MIB)
        until(lambda: pool.stats().held_bytes <= 8 * MIB)  # what is on its way back is held no longer
        until(lambda: pool.stats().trimmed_bytes >= 50 * MIB)
        assert np.zeros(8 * MIB).max() == 0
        print("fine")
        """)
    )
    assert out == "fine\n"


FORK = """
pool = ft.pool.install("256MiB", threshold="1MiB", populate="16MiB")
mine = np.arange(4 * MIB)
busy = threading.Event()
def work():
    while not busy.is_set():
        array = np.zeros(MIB)
        assert array.max() == 0
        array += 1
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for i in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert check(pool.arena) == [] and (mine[:1000] == np.arange(1000)).all()
            held = pool.stats().held_bytes
            assert held < 4 * MIB, held
            array = np.zeros(MIB)
            assert array.max() == 0
            del array
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0, i
busy.set()
for thread in threads:
    thread.join()
assert (mine == np.arange(4 * MIB)).all() and check(pool.arena, ()) is not None
print("fine")
"""


def test_forks_under_load_neither_hang_nor_lose_anything(run):
    assert run(code(FORK), "40") == "fine\n"


@pytest.mark.slow
def test_a_thousand_forks_under_load(run):
    assert run(code(FORK), "1000", timeout=280) == "fine\n"


def test_a_child_starts_its_scrubber_when_there_is_work(run):
    out = run(
        code("""
        pool = ft.pool.install("128MiB", threshold="1MiB", populate="0")
        np.ones(MIB)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert pool.arena.word[pool._s.THREAD] == pool._s.NO_THREAD
                np.ones(4 * MIB)
                until(lambda: pool.stats().free_unzeroed_bytes == 0)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        print("fine")
        """)
    )
    assert out == "fine\n"


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works_in_each_way(tmp_path, way):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, numpy as np, firsttouch as ft\n"
        "def work(n):\n"
        "    array = np.zeros(2**20) + n\n"
        "    return float(array.sum()), ft.pool.installed() is not None\n"
        "if __name__ == '__main__':\n"
        "    import multiprocessing as mp\n"
        "    mine = np.ones(2**22)\n"
        f"    with mp.get_context({way!r}).Pool(2) as pool:\n"
        "        print(pool.map(work, [1, 2]), sys.argv[1:])\n"
        "    sys.exit(int(mine[0]) + 4)\n"
    )
    command = [sys.executable, "-m", "firsttouch", "run", "--pool-limit", "128MiB", "--", str(script), "--an", "option"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == f"[({1.0 * 2**20}, True), ({2.0 * 2**20}, True)] ['--an', 'option']\n", done.stderr
    assert done.returncode == 5


@pytest.mark.parametrize(
    "last",
    [
        "sys.kept = np.zeros(MIB)",
        "import builtins; builtins.kept = [np.zeros(MIB)]; builtins.kept.append(builtins.kept)",
        "threading.Thread(target=lambda: [np.zeros(MIB) for _ in iter(int, 1)], daemon=True).start()",
        "kept = np.zeros(MIB); pool.stop()",
        "kept = np.zeros(MIB); [sys.modules.pop(m) for m in [*sys.modules] if m.startswith(('numba', 'llvm'))]",
        "kept = np.zeros(MIB); ft.pool.uninstall(); del kept",
        "kept = np.zeros(MIB); raise SystemExit(0)",
    ],
)
def test_the_interpreter_ends_in_any_order(run, last):
    assert run(code(f"pool = ft.pool.install('64MiB', threshold='1MiB')\n{last}\n")) == ""


def test_tracemalloc_sees_arrays_as_before(run):
    out = run(
        code("""
        import tracemalloc
        ft.pool.install("64MiB", threshold="1MiB")
        tracemalloc.start()
        array = np.zeros(2 * MIB)
        assert 16 * MIB <= tracemalloc.get_traced_memory()[0] < 17 * MIB
        del array
        assert tracemalloc.get_traced_memory()[0] < MIB
        print("fine")
        """)
    )
    assert out == "fine\n"


REFUSE_ADVICE = """
import struct
def refuse(advice):
    # a filter of system calls: madvise with this advice fails, as on a kernel that does not know it
    words = ((0x20, 0, 0, 0), (0x15, 0, 3, 28), (0x20, 0, 0, 32), (0x15, 0, 1, advice), (6, 0, 0, 0x50016),
             (6, 0, 0, 0x7FFF0000))
    text = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *each) for each in words))
    program = struct.pack("<HxxxxxxQ", len(words), ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
refuse(int(sys.argv[1]))
pool = ft.pool.install("128MiB", threshold="1MiB", populate="32MiB", strict=True)
until(lambda: pool.stats().populated_bytes >= 32 * MIB)
array = np.zeros(3 * MIB)
assert owned(pool, array) and array.max() == 0
print(pool.superpages)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of system calls are x86-64's")
@pytest.mark.parametrize("advice", [14, 23], ids=["no superpages", "no MADV_POPULATE_WRITE"])
def test_kernels_that_lack_an_advice(run, advice):
    superpages = "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    assert run(code(REFUSE_ADVICE), str(advice)) == f"{superpages and advice != 14}\n"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_kill_leaves_nothing_behind(how):
    script = code("ft.pool.install('64MiB'); kept = np.zeros(2**22); print('up', flush=True); time.sleep(600)")
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    mine = Path(f"/proc/{process.pid}")
    while "ft-scrub\n" not in [(task / "comm").read_text() for task in (mine / "task").iterdir()]:
        assert process.poll() is None  # the thread names itself some time after it was started
        os.sched_yield()
    process.send_signal(how)
    assert process.wait(30) == -how and not mine.exists()
    process.stdout.close()


STRESS = """
pool = ft.pool.install("512MiB", threshold="64KiB", populate="64MiB", age="0ns", regions=int(sys.argv[2]), pace="50us")
end = time.monotonic() + float(sys.argv[1])
wrong = []
def work(seed):
    random = np.random.default_rng(seed)
    held = []
    try:
        while time.monotonic() < end:
            nr = int(2 ** random.uniform(13, 22))
            value = int(random.integers(1, 250))
            if random.random() < 0.5:
                array = np.zeros(nr, np.uint8)
                assert not array.any()
            else:
                array = np.empty(nr, np.uint8)
            array[:] = value
            held.append((array, value))
            del array
            if len(held) > 20:
                array, value = held.pop(int(random.integers(len(held))))
                assert (array == value).all()
                if random.random() < 0.2:
                    array.resize(int(2 ** random.uniform(13, 22)), refcheck=False)
                del array
    except BaseException as error:
        wrong.append(repr(error))
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not wrong, wrong
pool.stop()
stats = pool.stats()
assert stats.scrubbed_bytes > 0 and stats.hits > 0
assert stats.live_bytes == 0 and check(pool.arena) == [], check(pool.arena)
print("fine")
"""


@pytest.mark.parametrize("regions", ["1", "3"])
def test_threads_and_the_scrubber_together(run, regions):
    assert run(code(STRESS), "2", regions) == "fine\n"


@pytest.mark.slow
def test_a_minute_of_threads_and_the_scrubber_together(run):
    assert run(code(STRESS), "60", "2") == "fine\n"


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_numpys_own_tests_pass_on_the_pool(run):
    pytest.importorskip("hypothesis")
    out = run(
        code("""
        pool = ft.pool.install("2GiB", threshold="64KiB")
        import pytest
        root = os.path.join(os.path.dirname(np.__file__), "_core", "tests")
        names = ("multiarray", "ufunc", "numeric", "indexing", "shape_base", "dtype", "nditer", "umath", "memmap",
                 "mem_overlap", "einsum", "records")
        status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", "--timeout=0",
                              *[os.path.join(root, f"test_{name}.py") for name in names]])
        stats = pool.stats()
        assert stats.nr_mallocs > 100, stats
        print("status", int(status))
        """),
        timeout=900,
    )
    assert "\nstatus 0\n" in out
