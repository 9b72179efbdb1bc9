"""Fixtures that several folders of tests use."""

import os
from pathlib import Path

import handmade
import pytest


@pytest.fixture(scope="session")
def hand_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of `handmade`; not to be written to."""
    return handmade.write_trace(tmp_path_factory.mktemp("hand") / "hand.ftt")


@pytest.fixture(scope="session")
def round_machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine file of `handmade`."""
    return handmade.write_machine(tmp_path_factory.mktemp("machine") / "round.toml")


@pytest.fixture(scope="session")
def regenerate() -> bool:
    """Whether golden texts are to be written anew: FIRSTTOUCH_REGENERATE=1 pytest; then read the difference."""
    return os.environ.get("FIRSTTOUCH_REGENERATE") == "1"
