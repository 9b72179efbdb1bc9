"""`firsttouch study`, as a user types it."""

import json

import pytest
from runner import assert_refused, run
from study_table import TABLE


def test_the_command_prints_tables_json_and_refuses_mistakes(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text(TABLE)
    ran = run("study", "--tables", path, "--cells")
    assert ran.code == 0
    assert "fitted" in ran.out and "a copy" in ran.out
    assert ran.out.isascii() and max(map(len, ran.out.splitlines())) <= 90
    tree = json.loads(run("study", "--tables", path, "--json").out)
    assert set(tree["studies"][0]) == {"table", "role", "cells", "median_error", "worst_error"}
    assert set(tree["studies"][0]["cells"][0]) == {"row", "column", "published", "model", "error_ratio", "role"}
    path.write_text(TABLE.replace("linux-2.6.10", "plan9"))
    gone = run("study", "--tables", path)
    assert gone.code == 1 and "not covered" in gone.out
    for words in ([], ["--all", "x"], ["nosuch"], ["--tables", tmp_path / "none"], ["--all", "-o", tmp_path]):
        assert_refused(run("study", *words))


def test_pages_are_made_and_are_the_same_each_time(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "t.toml"
    path.write_text(TABLE)
    for folder in ("a", "b"):
        assert run("study", "--tables", path, "--docs", tmp_path / folder).code == 0
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert names == ["index.md", "t.md", "t.svg"]
    assert all((tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names)
    assert "**outside**" in (tmp_path / "a" / "t.md").read_text()
    assert_refused(run("study", "--tables", path, "--docs", tmp_path / "a"))
