"""Starts measured programs and reads what the kernel counted for them. Standard library only: run as a script.

It reads one job a line (JSON) from stdin and writes one result a line to stdout. A program is started with
posix_spawn, so it shares nothing that must be taken down or copied on its account; what it used before exec, a few
faults, is measured once with a program that does not exist, and taken off.

When stdin closes - the verifier is done, or was killed - the program that runs is killed with its process group.
"""

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time

PR_SET_THP_DISABLE = 41
GET_PERSONALITY, ADDR_NO_RANDOMIZE = 0xFFFFFFFF, 0x0040000
AS_USUAL = (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Say hello, then do one job after another."""
    now = libc.personality(GET_PERSONALITY)
    fixed = now >= 0 and libc.personality(now | ADDR_NO_RANDOMIZE) >= 0
    own_faults = min(faults_before_exec() for _ in range(3))
    say({"fixed_addresses": fixed, "own_bytes": own_bytes()})
    lines = sys.stdin.buffer
    while line := lines.readline():
        say(run(json.loads(line), own_faults))


def say(result: dict[str, object]) -> None:
    """One line to the verifier."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def own_bytes() -> int:
    """Our own peak memory, which the kernel also counts as that of a program we start. Not ru_maxrss: that is what our
    own parent had."""
    with open("/proc/self/status") as status:
        return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")), 0)


def faults_before_exec() -> int:
    """Page faults that a spawned process takes in our memory before it is the program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
    try:
        spawn({"path": "/nonexistent/program", "command": ["program"], "env": {}, "stderr": os.devnull})
    except OSError:
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt - before
    return 0


def spawn(job: dict) -> int:  # type: ignore[type-arg]
    """Start the program of a job in a process group of its own, without a terminal."""
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, job["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
    ]
    return os.posix_spawn(job["path"], job["command"], job["env"], file_actions=files, setpgroup=0, setsigdef=AS_USUAL)


def run(job: dict, own_faults: int) -> dict[str, object]:  # type: ignore[type-arg]
    """Run the program of a job to its end."""
    first, flags = job["thp_disable"]
    if libc.prctl(PR_SET_THP_DISABLE, first, flags, 0, 0) != 0:
        return {"error": "prctl(PR_SET_THP_DISABLE): " + os.strerror(ctypes.get_errno())}
    try:
        os.chdir(job["cwd"])
        begin_ns = time.monotonic_ns()
        pid = spawn(job)
    except OSError as error:
        return {"error": f"cannot run {job['path']}: {error.strerror}"}
    wait_or_kill(pid)
    end_ns = time.monotonic_ns()
    _, status, used = os.wait4(pid, 0)
    left = kill_group(pid, 0)
    return {
        "exit": os.waitstatus_to_exitcode(status),
        "minflt": max(0, used.ru_minflt - own_faults),
        "majflt": used.ru_majflt,
        "user_ns": round(used.ru_utime * 1e9),
        "system_ns": round(used.ru_stime * 1e9),
        "wall_ns": end_ns - begin_ns,
        "maxrss_bytes": used.ru_maxrss * 1024,
        "preempted": used.ru_nivcsw,
        "left_behind": left,
    }


def wait_or_kill(pid: int) -> None:
    """Until the program has ended. If stdin closes first, kill it and ourselves."""
    handle = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(0, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if handle in ready:
            os.close(handle)
            return
        if 0 in ready:  # nothing is sent while a job runs, so this is its end
            kill_group(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os._exit(1)


def kill_group(pid: int, number: int) -> bool:
    """Send a signal to what is left of a process group; False if nothing is."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
