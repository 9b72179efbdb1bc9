"""The HTML report: one file, nothing unescaped, numbers where a reader looks for them."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import handmade
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttouch.report import html
from firsttouch.trace import Trace
from firsttouch.whatif import whatif

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


class Elements(HTMLParser):
    """Counts elements and keeps what would load something from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "onerror", "onload")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = handmade.write_trace(tmp_path_factory.mktemp("html") / "run.ftt", comm=HOSTILE, stacks=True)
    with Trace(path) as trace:
        return html.render(whatif(trace, policies=["+thp"], machine=handmade.machine()), trace)


def test_nothing_of_a_trace_becomes_an_element(page: str) -> None:
    elements = Elements(page)
    assert elements.seen.count("script") == 2  # Plotly's, and the one that draws
    assert "img" not in elements.seen
    assert elements.loads == []
    assert HOSTILE not in page and "<script>alert" not in page


def test_the_page_shows_what_was_there(page: str) -> None:
    text = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert "+thp" in text and "1,025" in text
    assert "fill" in text  # the function that touches
    assert "&lt;script&gt;alert(1)" in text  # the program's name, as text


def test_chart_data_is_the_outcome(page: str) -> None:
    match = re.search(r"const CHARTS = (.*?);\nconst dark", page, flags=re.S)
    assert match is not None
    charts = {chart["id"]: chart["data"] for chart in json.loads(match[1])}
    assert charts.keys() == {"times", "memory", "rate"}
    assert set(charts["memory"][0]["x"]) == {"+thp", "linux-6.18"}
    assert charts["memory"][1]["y"] == [0, 0]  # every page is touched
    assert sum(charts["rate"][0]["y"]) == 1025


@given(st.recursive(st.text() | st.integers(0, 10**12), lambda inner: st.lists(inner, max_size=3)))
def test_json_in_a_script_is_the_same_data_and_cannot_end_it(tree: object) -> None:
    text = html._json({"value": tree})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"value": tree}


def test_files_are_not_replaced(tmp_path: Path) -> None:
    from firsttouch.errors import FirsttouchError
    from firsttouch.report.exports import write_text

    path = write_text(tmp_path / "a.html", "one")
    with pytest.raises(FirsttouchError, match="exists already"):
        write_text(path, "two")
    assert path.read_text() == "one"
    assert write_text(path, "two", force=True).read_text() == "two"
    with pytest.raises(FirsttouchError, match="cannot write"):
        write_text(tmp_path / "none" / "a.html", "three")
    with pytest.raises(FirsttouchError, match="cannot write"):
        write_text(tmp_path, "three", force=True)
