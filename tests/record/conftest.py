"""Who can run what: tests marked `root` need tracepoints; the others need perf events at all."""

import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root: tracepoints, or a mount"))


@pytest.fixture
def recordable() -> None:
    """Skip where the kernel, or a container, refuses the page-faults event."""
    from firsttouch.record import doctor

    finding = doctor.record_basic()
    if not finding.ok:
        pytest.skip(finding.why)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where a trace goes."""
    return tmp_path / "run.ftt"
