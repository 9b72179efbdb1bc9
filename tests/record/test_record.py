"""Real recordings of real programs on the running kernel."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from firsttouch.errors import FirsttouchError, NotHere
from firsttouch.record import perf_event as pe
from firsttouch.record.idle import IdleWatch
from firsttouch.record.recorder import attach, record
from firsttouch.trace.raw import RawReader
from firsttouch.trace.schema import FILE, KERNEL, UNKNOWN_ACCESS, WRITE
from firsttouch.trace.store import Trace

LEVELS = ["basic", pytest.param("full", marks=pytest.mark.root)]
PYTHON = [sys.executable, "-I", "-S", "-c"]
TOUCH = """
import mmap
memory = mmap.mmap(-1, {pages} * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(memory), 4096):
    memory[at] = 1
"""

pytestmark = pytest.mark.usefixtures("recordable")


def touching(pages: int) -> list[str]:
    return [*PYTHON, TOUCH.format(pages=pages)]


def recorder(
    target: Path, command: list[str], level: str = "auto", first: str = "", **options: object
) -> subprocess.Popen[bytes]:
    """A recorder in a process of its own, which exits as the program did; `first` it runs other Python code."""
    script = (
        f"import sys; from firsttouch.record.recorder import record\n{first}\n"
        f"sys.exit(record({command!r}, {str(target)!r}, level={level!r}).exit_status)"
    )
    return subprocess.Popen([sys.executable, "-c", script], **options)


@pytest.mark.parametrize("level", LEVELS)
def test_every_page_touched_is_a_row(target, tmp_path, level):
    where = tmp_path / "where"
    note = f"import ctypes\nopen({str(where)!r}, 'w').write(str(ctypes.addressof(ctypes.c_char.from_buffer(memory))))"
    done = record([*PYTHON, TOUCH.format(pages=3000) + note], target, level=level)
    assert (done.exit_status, done.lost, done.level) == (0, 0, level)
    start = int(where.read_text())
    with Trace(target) as trace:
        touched = trace.sql(
            f"SELECT vaddr, map_id FROM touch WHERE vaddr BETWEEN {start} AND {start + 3000 * 4096 - 1}"
        )
        assert sorted(vaddr for vaddr, _ in touched) == [start + 4096 * i for i in range(3000)]
        ((low, high),) = trace.sql(f'SELECT start, "end" FROM map WHERE map_id = {touched[0][1]}')
        assert low <= start and start + 3000 * 4096 <= high
        assert trace.meta["finished"] is True
        assert trace.meta["base_pages"] is True
        assert trace.meta["minflt"] == done.minflt
        assert 0 < trace.meta["wall_ns"] == done.wall_ns
        assert trace.meta["unseen"] == done.minflt + done.majflt - done.touches


@pytest.mark.root
@pytest.mark.parametrize("program", ["touch", "gcc", "sqlite"])
def test_full_has_the_faults_that_the_kernel_counted(target, tmp_path, program):
    source = tmp_path / "main.c"
    source.write_text('#include <stdio.h>\n#include <stdlib.h>\nint main(void) { puts(getenv("HOME")); return 0; }\n')
    if program == "gcc" and shutil.which("gcc") is None:
        pytest.skip("there is no gcc here")
    command = {
        "touch": touching(20_000),
        "gcc": ["gcc", "-O2", "-o", str(tmp_path / "main"), str(source)],
        "sqlite": [
            *PYTHON,
            "import sqlite3; d = sqlite3.connect(':memory:'); d.execute('create table t(a)')\n"
            "d.executemany('insert into t values (?)', ((str(i) * 9,) for i in range(50000)))",
        ],
    }[program]
    done = record(command, target, level="full")
    counted = done.minflt + done.majflt
    assert done.exit_status == 0
    assert abs(done.touches - counted) <= 0.01 * counted


@pytest.mark.root
def test_full_knows_the_access_and_who_made_it(target):
    script = """
import mmap, os
memory = mmap.mmap(-1, 64 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
with open("/dev/zero", "rb", 0) as zero:
    zero.readinto(memory)
"""
    record([*PYTHON, script], target, level="full")
    with Trace(target) as trace:
        kinds = dict(trace.sql(f"SELECT kind & {KERNEL | WRITE}, count(*) FROM touch GROUP BY 1"))
        assert kinds[KERNEL | WRITE] >= 64
        assert trace.sql(
            f"SELECT count(*) FROM touch WHERE kind & {UNKNOWN_ACCESS} > 0 OR vaddr >= 1::UBIGINT << 63"
        ) == [(0,)]
        assert trace.sql(
            f"SELECT count(*) FROM touch JOIN map USING (map_id) WHERE (kind & {FILE} > 0) AND name = '//anon'"
        ) == [(0,)]
        assert trace.sql("SELECT count(*) FROM touch WHERE map_id < 0") == [(0,)]


@pytest.mark.root
@pytest.mark.parametrize("inside", [[], ["unshare", "--pid", "--fork", "--mount-proc"]], ids=["host", "pid namespace"])
def test_full_knows_the_process_of_each_thread_in_any_pid_namespace(target, inside):
    if inside and subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a pid namespace cannot be made here")
    script = """
import mmap, os, sys, threading
def touch(pages):
    memory = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, pages * 4096, 4096):
        memory[at] = 1
def both():
    threads = [threading.Thread(target=touch, args=(500,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
if os.fork() == 0:
    both()
    os._exit(0)
both()
os.wait()
"""
    recording = [sys.executable, "-m", "firsttouch", "record", "--level", "full", "-o", str(target), "--"]
    subprocess.run([*inside, *recording, *PYTHON, script], check=True, capture_output=True)
    with Trace(target) as trace:
        threads = trace.sql("SELECT pid, count(DISTINCT tid) FROM touch GROUP BY pid")
        assert [nr for _, nr in threads] == [4, 4]
        assert trace.sql("SELECT count(*) FROM touch WHERE map_id < 0") == [(0,)]


def test_basic_says_what_it_cannot_see(target):
    script = """
import mmap
memory = mmap.mmap(-1, 2000 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
with open("/dev/zero", "rb", 0) as zero:
    zero.readinto(memory)
"""
    done = record([*PYTHON, script], target, level="basic")
    assert 2000 <= done.unseen <= 2100
    with Trace(target) as trace:
        assert trace.sql(f"SELECT count(*) FROM touch WHERE kind & {UNKNOWN_ACCESS} = 0") == [(0,)]


@pytest.mark.root
def test_what_is_unmapped_and_advised_is_seen_at_full(target):
    script = """
import ctypes, mmap
libc = ctypes.CDLL(None)
libc.mmap.restype = libc.mremap.restype = libc.sbrk.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.sbrk.argtypes = [ctypes.c_long]
a = libc.mmap(None, 77 * 4096, 3, 0x22, -1, 0)
libc.madvise(a, 77 * 4096, 4)
b = libc.mremap(a, 77 * 4096, 7700 * 4096, 1)
libc.munmap(b, 7700 * 4096)
libc.sbrk(33 * 4096)
libc.sbrk(-33 * 4096)
"""
    record([*PYTHON, script], target, level="full")
    with Trace(target) as trace:
        sizes = set(trace.sql('SELECT how, ("end" - start) // 4096 FROM unmap'))
        assert {("mremap", 77), ("munmap", 7700), ("brk", 33)} <= sizes
        assert ("mremap", 7700) in trace.sql("SELECT how, (to_end - to_start) // 4096 FROM unmap")
        assert trace.sql('SELECT count(*) FROM advice WHERE advice = 4 AND "end" - start = 77 * 4096') == [(1,)]


@pytest.mark.parametrize("level", LEVELS)
def test_threads_children_and_execs_are_followed(target, level):
    script = """
import os, sys, threading, mmap
def work():
    memory = mmap.mmap(-1, 100 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(memory), 4096):
        memory[at] = 1
threads = [threading.Thread(target=work) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
if os.fork() == 0:
    work()
    os.execv("/bin/sh", ["sh", "-c", "exit 0"])
os.wait()
"""
    done = record([*PYTHON, script], target, level=level)
    assert done.exit_status == 0
    with Trace(target) as trace:
        assert trace.sql("SELECT count(DISTINCT pid), count(DISTINCT tid) FROM touch") == [(2, 5)]
        assert trace.meta["threads"] == 5
        assert trace.meta["descendants_left"] == 0
        events = [event for (event,) in trace.sql("SELECT event FROM task ORDER BY t_ns")]
        assert (events.count("exec"), events.count("fork"), events.count("exit")) == (2, 4, 5)
        per_tid = dict(trace.sql("SELECT tid, count(*) FROM touch GROUP BY tid"))
        assert min(per_tid.values()) >= 100 or level == "basic"
        assert trace.sql("SELECT count(*) FROM task WHERE event = 'exec' AND comm = 'sh'") == [(1,)]


def test_a_descendant_that_outlives_the_program_is_reported(target, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    end = os.open(fifo, os.O_RDWR)
    try:
        done = record(["/bin/sh", "-c", f"(read line < {fifo}) & exit 0"], target, level="basic")
        os.write(end, b"go\n")
        with Trace(target) as trace:
            assert trace.meta["descendants_left"] == 1
            ((reader,),) = trace.sql("SELECT pid FROM task WHERE event = 'fork'")
        wait_for(lambda: not Path(f"/proc/{reader}").exists())
    finally:
        os.close(end)
    assert done.exit_status == 0


@pytest.mark.parametrize(
    ("script", "status"), [("exit 7", 7), ("kill -SEGV $$", 128 + 11), ("kill -TERM $$", 128 + 15)]
)
def test_the_exit_status_is_as_a_shell_shows_it(target, script, status):
    done = record(["/bin/sh", "-c", script], target, level="basic")
    assert done.exit_status == status
    with Trace(target) as trace:
        assert trace.meta["exit"] == status


def test_input_output_and_errors_are_the_programs_own(target):
    command = ["/bin/sh", "-c", "cat; echo oops >&2; exit 3"]
    with recorder(target, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        out, err = running.communicate(b"hello\n")
    assert (out, err, running.returncode) == (b"hello\n", b"oops\n", 3)


def test_a_program_that_faults_almost_nothing_is_recorded(target):
    done = record(["/bin/true"], target, level="basic")
    assert done.exit_status == 0
    assert 0 < done.touches <= done.minflt


def test_no_fault_at_all_is_a_trace(target):
    """Attached to a process that does nothing: a trace with no touch, but with its mappings."""
    with subprocess.Popen(["/bin/sleep", "1000"]) as idle:
        try:
            wait_for(lambda: b"sleep" in Path(f"/proc/{idle.pid}/cmdline").read_bytes())
            wait_for(lambda: Path(f"/proc/{idle.pid}/stat").read_text().split()[2] == "S")
            done = attach(idle.pid, 0.1, target, level="basic")
        finally:
            idle.kill()
    assert done.touches == 0
    with Trace(target) as trace:
        assert trace.sql("SELECT count(*) FROM touch") == [(0,)]
        assert trace.sql("SELECT count(*) FROM map WHERE name LIKE '%sleep'")[0][0] > 0
        assert trace.meta["attached"] == idle.pid


def test_an_attached_process_goes_on_and_its_touches_are_seen(target):
    script = f"""
import sys
while True:
{chr(10).join("    " + line for line in TOUCH.format(pages=100).splitlines())}
    memory.close()
    sys.stdout.write("x"); sys.stdout.flush()
"""
    with subprocess.Popen([*PYTHON, script], stdout=subprocess.PIPE) as busy:
        try:
            os.set_blocking(busy.stdout.fileno(), True)
            busy.stdout.read(1)

            def progress(_):
                os.read(busy.stdout.fileno(), 65536)

            done = attach(busy.pid, 0.5, target, level="basic", progress=progress)
            assert busy.poll() is None
        finally:
            busy.kill()
    assert done.touches >= 100
    with Trace(target) as trace:
        # A mapping that was made before the events were on, and is gone before /proc is read, cannot be known. From the
        # next mapping on each touch has one.
        known = "(SELECT min(t_ns) FROM map WHERE t_ns > (SELECT min(t_ns) FROM map))"
        assert trace.sql(f"SELECT count(*) FROM touch WHERE map_id < 0 AND t_ns > {known}") == [(0,)]
        assert trace.sql(f"SELECT count(*) >= 100 FROM touch WHERE t_ns > {known}") == [(True,)]
        assert trace.sql("SELECT count(*) FROM task WHERE event = 'comm'")[0][0] == 1


@pytest.mark.parametrize(
    ("name", "message"), [("no-such-program-here", "no such program"), ("/no/such", "no such file")]
)
def test_a_program_that_is_not_there_leaves_nothing(target, name, message):
    with pytest.raises(FirsttouchError, match=message) as caught:
        record([name], target, level="basic")
    assert caught.value.exit_code == 2
    assert caught.value.hint
    assert list(target.parent.iterdir()) == []


def test_a_program_that_may_not_run_leaves_nothing(target, tmp_path):
    (tmp_path / "data").write_text("data")
    with pytest.raises(FirsttouchError, match="permission denied") as caught:
        record([str(tmp_path / "data")], target, level="basic")
    assert caught.value.exit_code == 2
    assert not target.exists()


def test_a_file_that_is_no_program_leaves_nothing(target, tmp_path):
    program = tmp_path / "program"
    program.write_bytes(b"#!/no/such/interpreter\n")
    program.chmod(0o755)
    with pytest.raises(FirsttouchError, match="cannot run"):
        record([str(program)], target, level="basic")
    assert list(tmp_path.iterdir()) == [program]


def test_a_script_without_interpreter_runs_as_in_a_shell(target, tmp_path):
    script = tmp_path / "script"
    script.write_text("exit 5\n")
    script.chmod(0o755)
    assert record([str(script)], target, level="basic").exit_status == 5


def test_a_trace_is_not_overwritten(target):
    target.write_text("precious")
    with pytest.raises(FirsttouchError, match="exists"):
        record(["/bin/true"], target, level="basic")
    assert target.read_text() == "precious"


def test_no_such_process(target):
    with pytest.raises(FirsttouchError, match="No such process"):
        attach(2**22 - 1, 1, target)
    assert not target.exists()


def test_an_unknown_level_is_refused(target):
    with pytest.raises(FirsttouchError, match="level"):
        record(["/bin/true"], target, level="most")
    assert not target.exists()


@pytest.mark.parametrize(("number", "text"), [(13, "paranoid is"), (38, "no perf events"), (3, "no such process")])
def test_a_refusal_says_why_and_what_to_do(number, text, monkeypatch):
    monkeypatch.setattr(pe, "paranoid", lambda: 3)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    error = pe.refusal(OSError(number, os.strerror(number)), "the page-faults event")
    assert text in error.message
    assert error.hint
    assert isinstance(error, NotHere) == (number != 3)


def wait_for(condition):
    """Until it holds; the test's own time limit ends a wait in vain."""
    while not condition():
        os.sched_yield()


def endless(tmp_path):
    """A program that touches memory until it is told to stop, and notes its pid."""
    return [
        *PYTHON,
        f"import os\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nwhile True:\n"
        + "\n".join("    " + line for line in TOUCH.format(pages=500).splitlines())
        + "\n    memory.close()",
    ]


def committed(target, tmp_path):
    """Touches that a copy of the trace's files holds now: what would be left if the recorder died."""
    copy = tmp_path / "copy"
    copy.mkdir(exist_ok=True)
    for path in sorted(target.parent.glob(target.name + "*")):  # the log last: it may only be newer than the file
        shutil.copy(path, copy)
    try:
        with Trace(copy / target.name) as trace:
            return trace.sql("SELECT count(*) FROM touch")[0][0]
    except FirsttouchError:  # the log was copied while it was written to
        return 0


def wait_for_commit(target, tmp_path):
    """Until touches of the running program are on disk."""
    wait_for(lambda: target.exists() and (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    wait_for(lambda: committed(target, tmp_path) > 500)


def test_kill_9_leaves_a_readable_trace(target, tmp_path):
    running = recorder(target, endless(tmp_path), "basic")
    wait_for_commit(target, tmp_path)
    running.kill()
    running.wait()
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 0)  # the program goes on
    os.kill(pid, signal.SIGKILL)
    with Trace(target) as trace:
        assert trace.meta["finished"] is False
        assert trace.meta["wall_ns"] is None
        assert trace.meta["level"] == "basic"
        assert trace.sql("SELECT count(*) FROM touch")[0][0] > 500


NO_IDLE_CPU = "from firsttouch.record.idle import IdleWatch; IdleWatch.has_idle_cpu = lambda watch: False"


def test_kill_9_on_a_busy_machine_leaves_a_readable_trace(target, tmp_path):
    running = recorder(target, endless(tmp_path), "basic", first=NO_IDLE_CPU)
    raw = target.with_name(target.name + ".raw")
    wait_for(lambda: raw.exists() and raw.stat().st_size > 500_000)
    with RawReader(raw) as reader:
        wait_for(lambda: reader.next() is not None and reader.at > 500_000)  # a look is whole or it is not there
    running.kill()
    running.wait()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    with Trace(target) as trace:
        assert trace.meta["finished"] is False
        ((touches, mapped),) = trace.sql("SELECT count(*), count(*) FILTER (map_id >= 0) FROM touch")
        assert touches > 5000
        assert mapped > 0.99 * touches
    assert not raw.exists()


def test_a_busy_machine_folds_all_in_at_the_end(target, monkeypatch):
    monkeypatch.setattr("firsttouch.record.idle.IdleWatch.has_idle_cpu", lambda _: False)
    done = record(touching(5000), target, level="basic")
    assert done.touches >= 5000
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    with Trace(target) as trace:
        assert trace.sql("SELECT count(*) FROM touch") == [(done.touches,)]


def test_cpu_time_that_nobody_uses_is_noticed(monkeypatch):
    now = {"s": 0.0, "idle": 100, "used": 0.0}
    monkeypatch.setattr("firsttouch.record.idle.time.monotonic", lambda: now["s"])
    monkeypatch.setattr("firsttouch.record.idle.IdleWatch._clocks", lambda _: (now["idle"], now["used"]))
    watch = IdleWatch()
    assert not watch.has_idle_cpu()  # nothing is known yet
    for idle, used, expected in ((0.01, 0.0, False), (0.1, 0.0, True), (0.0, 0.06, True), (0.04, 0.005, False)):
        now["s"] += 0.1
        now["idle"] += idle
        now["used"] += used
        assert watch.has_idle_cpu() is expected
        now["s"] += 0.05  # too soon to say anything else
        now["idle"] += 1
        assert watch.has_idle_cpu() is expected
        now["s"] -= 0.05
        now["idle"] -= 1


@pytest.mark.parametrize(("number", "to_group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_signal_ends_the_program_and_keeps_the_trace(target, tmp_path, number, to_group):
    running = recorder(target, endless(tmp_path), "basic", start_new_session=True, stderr=subprocess.DEVNULL)
    wait_for_commit(target, tmp_path)
    if to_group:
        os.killpg(running.pid, number)  # as Ctrl-C does
    else:
        running.send_signal(number)
    # Python ends by KeyboardInterrupt with the signal itself
    assert running.wait() == 128 + number
    with Trace(target) as trace:
        assert trace.meta["finished"] is True
        assert trace.meta["exit"] == 128 + number
        assert trace.sql("SELECT count(*) FROM touch")[0][0] > 500


@pytest.mark.root
def test_a_full_disk_is_one_line_and_loses_nothing_committed(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    target = folder / "run.ftt"
    try:
        running = recorder(target, endless(tmp_path), "basic", stderr=subprocess.PIPE)
        wait_for_commit(target, tmp_path)
        with pytest.raises(OSError, match="No space"), open(folder / "filler", "wb", 0) as filler:
            while True:
                filler.write(b"1" * (1 << 16))
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
        _, said = running.communicate()
        last = said.decode().strip().splitlines()[-1]
        assert "FirsttouchError: cannot write to" in last
        assert running.returncode == 1
        kept = committed(target, tmp_path)
        assert kept > 500
        with Trace(tmp_path / "copy" / "run.ftt") as trace:
            assert trace.meta["finished"] is False
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_what_a_tiny_ring_loses_is_counted(target, monkeypatch):
    # the reader does not look before the program has ended: the ring overflows for certain
    from firsttouch.record import recorder as module

    monkeypatch.setattr(module, "POLL_MS", 60_000)
    monkeypatch.setattr(module.pe.Event, "attr", with_no_wakeup(module.pe.Event.attr))
    done = record(touching(5000), target, level="basic", ring_bytes=4 * os.sysconf("SC_PAGESIZE"))
    assert done.lost > 1000
    # nothing is both lost and kept, and nothing is neither (records of mappings and tasks may be lost too)
    assert done.touches + done.lost >= done.minflt - 100
    with Trace(target) as trace:
        assert trace.meta["lost"] == done.lost


def with_no_wakeup(attr):
    return lambda event, _watermark, read_format: attr(event, 1 << 30, read_format)


@pytest.mark.parametrize("level", LEVELS)
def test_stacks_are_stored_once_and_have_names(target, level):
    done = record(touching(2000), target, level=level, stacks=True)
    with Trace(target) as trace:
        assert trace.sql("SELECT count(*) FROM touch WHERE stack_id >= 0")[0][0] > 0.9 * done.touches
        ((stacks,),) = trace.sql("SELECT count(DISTINCT stack_id) FROM stack")
        assert stacks < done.touches / 2
        assert trace.sql(
            "SELECT count(*) FROM touch WHERE stack_id >= 0 AND stack_id NOT IN (SELECT stack_id FROM stack)"
        ) == [(0,)]
        named = trace.sql("SELECT count(*) FROM symbol WHERE name <> ''")[0][0]
        assert named > 20


def test_as_is_leaves_huge_pages_alone(target):
    script = "import sys; sys.exit('THP_enabled:\\t1' not in open('/proc/self/status').read())"
    assert record([*PYTHON, script], target, level="basic", as_is=True).exit_status == 0
    assert record([*PYTHON, script], target, level="basic", force=True).exit_status == 1
    with Trace(target) as trace:
        assert (trace.meta["as_is"], trace.meta["base_pages"]) == (False, True)


@pytest.mark.root
def test_an_ordinary_user_records_basic_and_is_told_why():
    """As nobody, with only the right to read this test's Python; perf events know nothing of that right."""
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv here")
    if (pe.paranoid() or 0) > 2:
        pytest.skip("perf_event_paranoid keeps ordinary users out")
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are for its user alone
        folder = Path(name)
        folder.chmod(0o777)
        records_as_nobody(folder)


def records_as_nobody(folder):
    script = (
        "from firsttouch.record.recorder import attach, record\n"
        f"r = record(['/bin/ls', '/'], {str(folder / 'r.ftt')!r}); print(r.level, r.why)\n"
        "try:\n"
        f"    attach(1, 1, {str(folder / 'a.ftt')!r})\n"
        "except Exception as error:\n"
        "    print(error)\n"
    )
    rights = "-all,+dac_read_search"
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"--inh-caps={rights}",
              f"--ambient-caps={rights}", f"--bounding-set={rights}"]  # fmt: skip
    done = subprocess.run(
        [*nobody, sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={**os.environ, "XDG_CACHE_HOME": str(folder), "HOME": str(folder)},
    )  # fmt: skip
    assert "basic " in done.stdout
    assert "tracefs" in done.stdout or "root may" in done.stdout
    assert "for pid 1: Permission denied; that process belongs to another user" in done.stdout
    assert not (folder / "a.ftt").exists()
