"""How fast the model takes locks where many CPUs contend: a sample of a 104-way package build under FreeBSD 13.

`make bench`. Nothing here asserts a time. `extra_info` holds acquisitions a second, of all classes of locks together.
"""

import msgspec
import pytest

from firsttouch import machine, policy
from firsttouch.mm.simulate import simulate
from firsttouch.workload.generators import storm
from firsttouch.workload.generators.build import build

NR_CPUS = 104
WIDE = msgspec.structs.replace(machine.load("vm-2cpu-zen4"), nr_cpus=NR_CPUS, memory_bytes=16 << 30)


@pytest.mark.parametrize(
    "name", ["freebsd-13", "freebsd-13+reservations", "freebsd-13+reservations+pv-superpage-batch"]
)
def test_a_build_on_104_cpus(benchmark, name: str) -> None:
    rules = policy.load(name)
    simulate(storm(2 * NR_CPUS, at_once=NR_CPUS), WIDE, rules)  # compiles
    workload = build("packages", scale=0.0004)
    outcome = benchmark.pedantic(simulate, args=(workload, WIDE, rules), rounds=3)
    assert not outcome.out_of_memory
    nr = sum(use.acquired for use in outcome.locks.values())
    benchmark.extra_info["acquisitions"] = nr
    benchmark.extra_info["per_s"] = round(nr / benchmark.stats.stats.median)
