"""Every policy preset on every generator, small; what fails is printed. Run as a script, with the JIT off."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "workload"), str(TESTS / "mm")]

from hand_workload import small_machine  # noqa: E402
from test_generators import SMALL, small  # noqa: E402

from firsttouch import policy  # noqa: E402
from firsttouch.errors import FirsttouchError  # noqa: E402
from firsttouch.mm.sched import DONE  # noqa: E402
from firsttouch.mm.simulate import replay  # noqa: E402
from firsttouch.workload.generators import aged  # noqa: E402

NUMBERS = ("64", "16", "2")  # for an N in a preset's name: the first that the policy takes


def names():
    """A loadable name for each preset: a diff goes on the base it extends, or linux-6.18."""
    for preset in policy.presets():
        if not preset.name.startswith(("+", "-")):
            yield preset.name
            continue
        base = preset.extends or "linux-6.18"
        for number in NUMBERS:
            try:
                policy.load(base + preset.name.replace("N", number))
            except FirsttouchError:
                continue
            yield base + preset.name.replace("N", number)
            break
        else:
            yield f"{base}{preset.name} cannot be loaded"


if __name__ == "__main__":
    here = small_machine(2)
    workloads = {name: small(name) for name in SMALL}
    workloads["aged storm"] = aged(small("storm"), 3000, days=2, long_ratio=0.01)
    nr_runs = 0
    for name in names():
        for what, workload in workloads.items():
            try:
                world = replay(workload, here, policy.load(name))
                if not (world.sched.state == DONE).all():
                    print(f"{name} on {what}: not all threads end")
            except Exception as error:
                print(f"{name} on {what}: {error!r}")
            nr_runs += 1
    print(f"{nr_runs} runs")
