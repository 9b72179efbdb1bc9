"""Pictures of studies: which points are joined, and which columns share a panel."""

import pytest

from firsttouch.report.study_pages import alike, is_series


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
