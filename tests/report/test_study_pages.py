"""Pictures of studies: which points are joined, and which columns share a panel."""

import pytest
from study_table import TABLE

from firsttouch.report.study_pages import alike, is_series, plot
from firsttouch.study.compare import Cell, Study
from firsttouch.study.table import decode


@pytest.mark.parametrize(
    ("rows", "joined"),
    [
        (["Gb=4 Threads=1", "Gb=4 Threads=2"], True),
        (["CLine=1", "CLine=2", "CLine=128"], True),
        (["Gb=4 Threads=1"], False),  # nothing to join
        (["machine=Milan primitive=clzero", "machine=Icelake primitive=movnt"], False),
        (["real_s", "user_s"], False),
        (["Threads=1", "Pages=1"], False),
    ],
)
def test_only_rows_that_differ_in_numbers_are_joined(rows, joined):
    assert is_series(rows) is joined


def test_columns_of_unlike_size_have_panels_of_their_own():
    assert alike([2.8e8, 154.0, 2.0e8, 3.0]) == [1, 0, 1, 0]
    assert alike([7e4, 5e5, 1e3]) == [0, 0, 0]
    assert alike([0.0, 5.0, 2e6]) == [0, 0, 1]


def test_what_the_model_says_of_a_single_row_is_in_the_picture(tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="pictures need the docs extra")
    drawn = []
    monkeypatch.setattr(pyplot, "close", drawn.append)
    (table,) = decode(TABLE.encode(), "t")
    cell = Cell(row="threads=1", column="rate", published=2.0, model=3.0, error_ratio=0.5, role="predict")
    plot(Study("t", "predict", [cell], 0.5, 0.5), table, tmp_path / "t.svg")
    points = {(line.get_marker(), *line.get_ydata()) for line in drawn[0].axes[0].lines}
    assert points == {("x", 3.0), ("o", 2.0)}
