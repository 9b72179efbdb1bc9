"""Outcomes of a fixed set of workloads under several policies, as JSON. Run as a script, it prints them."""

import json
import sys

import msgspec
from hand_workload import Hand, linux, recorded, small_machine

from firsttouch import policy
from firsttouch.mm.simulate import simulate
from firsttouch.workload import SHARED, SHMEM, WRITABLE, WRITE

POLICIES = ("", "+thp", "+mthp-16k+mthp-64k", "+populate", "+prezero-4k", "-per-vma-lock+fault-around-4", "+promote-50",
            "+promote-later-10")  # fmt: skip
FREEBSD = ("freebsd-13", "freebsd-13+pv-one", "freebsd-13+reservations+pv-superpage-batch")


def family():
    """Fork, copy on write, mremap, unmap, files, shared memory, and threads that overlap on two CPUs."""
    h = Hand([3, 3])
    t = h.thread()
    v, f, s = h.vma(5, 700), h.vma(700, 900, WRITABLE), h.vma(900, 1000, WRITABLE | SHARED | SHMEM)
    h.map(t, v)
    h.write(t, v, *range(5, 300, 3), think_ns=200)
    h.read(t, f, *range(700, 760))
    other = h.fork(t)
    h.write(other, v, *range(400, 560), think_ns=150)
    h.write(other, s, *range(900, 930))
    child = h.fork(t, mm=1)
    h.write(child, v, *range(5, 80, 3))
    h.write(child, f, *range(700, 720))
    h.sleep(child, 50_000)
    h.exit(child, think_ns=400)
    h.write(t, v, *range(5, 60), think_ns=100)
    h.move(t, 100, 200, 1100)
    h.unmap(t, 20, 90)
    h.join(t, child)
    h.write(t, v, *range(20, 90))
    h.wake(t, other)
    h.wait(other)
    h.join(t, other)
    return h


def crowd():
    """Five threads on two CPUs, all over one region, who come back after a while."""
    h = Hand([2])
    v = h.vma(0, 1024)
    for i in range(5):
        t = h.thread(start_ns=i * 37)
        h.write(t, v, *range(i, 600, 5), think_ns=90 * i)
        h.unmap(t, 100 * i, 100 * i + 50)
        h.touch(t, v, 511, WRITE)
        h.sleep(t, 1_300_000)
        h.write(t, v, *range(i, 600, 7))
    return h


def quick(policy):
    """With a daemon that wakes so often that short workloads meet it."""
    superpage = msgspec.structs.replace(policy.superpage, promote_sleep_ms=1, promote_scan_pages=512)
    return msgspec.structs.replace(policy, superpage=superpage)


def workloads(small):
    out = {"family": family().workload(lines_touched=64), "crowd": crowd().workload()}
    if not small:
        out["recorded"] = recorded(family().workload(lines_touched=64))
        out["recorded crowd"] = recorded(crowd().workload(), "basic")
    return out


def outcomes(small):
    """{workload and policy: outcome}"""
    chosen = {diffs: quick(linux(diffs)) for diffs in (POLICIES[1::2] if small else POLICIES)}
    chosen |= {name: policy.load(name) for name in (FREEBSD[2:] if small else FREEBSD)}
    return {
        f"{name} {which}": msgspec.to_builtins(simulate(workload, small_machine(2), chosen[which]))
        for name, workload in workloads(small).items()
        for which in chosen
    }


if __name__ == "__main__":
    print(json.dumps(outcomes(sys.argv[1:] == ["small"])))
