"""Generated programs: events counted by hand, and what the model makes of them under every policy."""

import numpy as np
import pytest
from hand_workload import linux, small_machine
from hypothesis import given, settings
from hypothesis import strategies as st
from test_pft_workload import assert_all_is_free

from firsttouch.errors import FirsttouchError
from firsttouch.mm.simulate import replay, simulate
from firsttouch.workload import EXEC, FORK, JOIN, MAP, SLEEP, TOUCH, UNMAP, Workload
from firsttouch.workload.generators import GENERATORS, Build, Program, readers, server, sparse, storm
from firsttouch.workload.generators.server import _sizes

SMALL = {
    "ageing": (GENERATORS["ageing"], {"nr_pages": 3000, "days": 3, "long_ratio": 0.01, "life_days": 2}),
    "build": (
        GENERATORS["build"],
        {
            "of": Build(
                jobs=6, parallel=2, helpers=1, user_s=1e-3, kernel_s=1e-3, io_s=1e-3, make_s=1e-4,
                shell=Program(1 << 15, 0.5, 1 << 13, 1 << 14),
                helper=Program(1 << 16, 0.5, 1 << 13, 1 << 14),
                compiler=Program(1 << 17, 0.5, 1 << 14, 1 << 18),
            ),
            "scale": 1,
        },
    ),
    "pft": (GENERATORS["pft"], {"nr_bytes": 1 << 19, "reps": 2, "threads": 2}),
    "readers": (readers, {"file_pages": 700, "threads": 2, "pattern": "random"}),
    "storm": (
        storm,
        {"processes": 9, "at_once": 2, "pages": 30, "file_pages": 16, "copied_pages": 5, "worker_pages": 8},
    ),
    "server": (server, {"requests": 40, "threads": 3, "heap_pages": 100, "buffer_pages": 32, "grow_every": 4}),
    "sparse": (sparse, {"nr_pages": 4096, "touched_ratio": 0.1, "run_pages": 2, "threads": 2}),
}  # fmt: skip
POLICIES = ["", "+thp", "+mthp-64k", "+populate", "+prezero-4k", "+prezero-2m", "+init-on-free", "-per-vma-lock"]


def small(name: str) -> Workload:
    generate, parameters = SMALL[name]
    return generate(**parameters)


def count(workload: Workload, op: int) -> int:
    return int(np.count_nonzero(workload.events.op == op))


def test_every_generator_is_tested_here() -> None:
    assert {name: generate for name, (generate, _) in SMALL.items()} == GENERATORS


@pytest.mark.parametrize("name", SMALL)
def test_the_same_parameters_give_the_same_events(name: str) -> None:
    for one, two in zip(small(name).events, small(name).events, strict=True):
        assert np.array_equal(one, two)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", SMALL)
def test_every_policy_runs_twice_alike_and_frees_all(name: str, policy: str) -> None:
    workload, here, rules = small(name), small_machine(2), linux(policy)
    world = replay(workload, here, rules)
    assert_all_is_free(world)
    assert np.all(world.sched.state == world.sched.state.max())  # every thread is done
    assert simulate(workload, here, rules) == simulate(workload, here, rules)


def test_a_storm_by_hand() -> None:
    w = small("storm")
    # 2 workers and 9 processes; a touch event each of worker memory (2), copies, files and fresh memory (9 each).
    assert (count(w, FORK), count(w, JOIN), count(w, EXEC), count(w, TOUCH)) == (11, 11, 9, 2 + 3 * 9)
    outcome = simulate(w, small_machine(2), linux("+fault-around-4"))
    kinds = outcome.faults_by_kind
    assert kinds["zero_fill"] == 2 * 8 + 9 * 30
    assert kinds["file"] == 9 * 16  # windows of one page
    assert kinds["cow"] + kinds["reuse"] == 9 * 5
    assert kinds["cow"] == 9 * 5  # the worker still has its page


def test_a_storm_forks_and_execs_in_turn() -> None:
    w = storm(3, at_once=1, pages=0, file_pages=0, copied_pages=0, worker_pages=0, compute_ns=7)
    assert (count(w, TOUCH), count(w, EXEC)) == (0, 3)
    assert simulate(w, small_machine(4), linux()).wall_ns == 3 * 7


def test_a_server_by_hand() -> None:
    w = small("server")
    assert (count(w, MAP), count(w, UNMAP), count(w, SLEEP)) == (40, 40, 40)
    # 40 requests of 3 threads are 14, 13, 13 each; every 4th grows the heap: 3 pages a thread.
    grown, churned = 3 * 3, sum(_sizes(40, 32, 1))
    assert simulate(w, small_machine(2), linux()).faults == 100 + grown + churned


def test_buffer_sizes_halve_in_number() -> None:
    sizes = np.array(_sizes(20_000, 256, 5))
    assert (sizes.min(), sizes.max()) == (1, 256)
    classes = np.bincount([int(size).bit_length() - 1 for size in sizes], minlength=9) / len(sizes)
    assert classes[:4] == pytest.approx([1 / 2, 1 / 4, 1 / 8, 1 / 16], abs=0.02)


def test_sparse_faults_are_what_is_touched() -> None:
    # Each of 2 parts of 2,048 pages has 1,024 runs of 2 pages; a tenth of those is 102.
    assert simulate(small("sparse"), small_machine(2), linux()).faults == 2 * 102 * 2


def test_sparse_programs_bloat_under_superpages() -> None:
    w = sparse(32_768, touched_ratio=0.02)
    base, thp = (simulate(w, small_machine(), linux(policy)) for policy in ("", "+thp"))
    assert base.untouched_bytes == 0
    assert thp.peak_bytes == 32_768 * 4096
    assert thp.untouched_bytes == thp.peak_bytes - base.peak_bytes


@settings(max_examples=30, deadline=None)
@given(
    nr_pages=st.integers(64, 3000), ratio=st.floats(0.001, 1), run=st.integers(1, 8), threads=st.integers(1, 4),
    in_order=st.booleans(), seed=st.integers(0, 5),
)  # fmt: skip
def test_sparse_runs_never_overlap_and_stay_inside(nr_pages, ratio, run, threads, in_order, seed) -> None:
    w = sparse(nr_pages, touched_ratio=ratio, run_pages=run, threads=threads, in_order=in_order, seed=seed)
    touched = w.events.op == TOUCH
    pages = [page for e in np.flatnonzero(touched) for page in range(w.events.page[e], w.events.end[e])]
    assert len(pages) == len(set(pages))
    assert min(pages) >= 0 and max(pages) < nr_pages
    runs = nr_pages // threads // run
    assert len(pages) == threads * run * max(1, round(ratio * runs))


@pytest.mark.parametrize(
    ("generate", "bad", "said"),
    [
        (storm, {"processes": 0}, "storm: processes is 0"),
        (storm, {"copied_pages": 65}, "storm: worker_pages is 64; it must be at least 65"),
        (server, {"threads": 0}, "server: threads is 0"),
        (server, {"buffer_pages": 0}, "server: buffer_pages is 0"),
        (sparse, {"nr_pages": 3, "threads": 4}, "sparse: nr_pages is 3"),
        (sparse, {"touched_ratio": 0.0}, "touched_ratio is 0.0"),
        (sparse, {"touched_ratio": float("nan")}, "touched_ratio is nan"),
    ],
)
def test_a_parameter_out_of_range_is_named(generate, bad, said) -> None:
    with pytest.raises(FirsttouchError, match=said):
        generate(**bad)
