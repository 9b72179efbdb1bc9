"""The verbs, as a user types them."""

import json
import sys
from pathlib import Path

import handmade
import pytest
from runner import Ran, assert_refused, run

from firsttouch.errors import FirsttouchError, NotHere
from firsttouch.record import recorder

GOLDEN = Path(__file__).with_name("golden")


def records() -> bool:
    """Whether this machine lets this user record at all."""
    from firsttouch.record.doctor import examine

    return any(finding.ok for finding in examine() if finding.name == "record basic")


needs_recording = pytest.mark.skipif(not records(), reason="this machine does not let this user record")


@pytest.mark.parametrize("words", [(), ("whatif",), ("trace",), ("trace", "export")])
def test_help_exits_with_0(words: tuple[str, ...]) -> None:
    ran = run(*words, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Usage: firsttouch")


def test_help_names_the_verbs_and_no_others() -> None:
    text = run("--help").out.partition("Commands:")[2].partition("Start with")[0]
    verbs = {line.split()[0] for line in text.splitlines() if line.startswith("  ") and line[2:3].strip()}
    assert verbs == {
        "demo", "whatif", "record", "report", "calibrate", "doctor", "policies", "machines", "pft", "run", "trace",
        "verify", "study",
    }  # fmt: skip


def test_version() -> None:
    from firsttouch import __version__

    assert run("--version").out == f"firsttouch {__version__}\n"


@pytest.mark.parametrize("name", ["trace_info", "trace_check", "policies_show"])
def test_output_is_the_golden_text(name: str, hand_trace: Path, regenerate: bool) -> None:
    words = {
        "trace_info": ("trace", "info", hand_trace),
        "trace_check": ("trace", "check", hand_trace),
        "policies_show": ("policies", "--show", "+mthp-64k"),
    }[name]
    ran = run(*words)
    assert ran.code == 0
    path = GOLDEN / f"{name}.txt"
    if regenerate:
        path.parent.mkdir(exist_ok=True)
        path.write_text(ran.out)
    assert ran.out == path.read_text()


def whatif(*words: object) -> Ran:
    return run("whatif", *words, "--policies", "+thp,+mthp-64k,+populate")


def test_whatif_json_holds_the_counts_made_by_hand(hand_trace: Path, round_machine: Path) -> None:
    ran = whatif(hand_trace, "--machine", round_machine, "--json")
    tree = json.loads(ran.out)
    assert ran.code == 0
    assert {outcome["policy"]: outcome["faults"] for outcome in tree["outcomes"]} == handmade.FAULTS
    assert (tree["trace"]["touches"], tree["trace"]["lost"], tree["machine"]["name"]) == (1025, 0, "round")


def test_whatif_plain_can_be_mailed(hand_trace: Path, round_machine: Path) -> None:
    ran = whatif(hand_trace, "--machine", round_machine, "--plain")
    assert ran.out.isascii() and max(map(len, ran.out.splitlines())) <= 78
    assert "1,025 touches" in ran.out


def test_whatif_writes_html_once(hand_trace: Path, round_machine: Path, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    assert whatif(hand_trace, "--machine", round_machine, "--html", page).code == 0
    assert page.read_text().startswith("<!doctype html>")
    assert_refused(whatif(hand_trace, "--machine", round_machine, "--html", page))
    assert whatif(hand_trace, "--machine", round_machine, "--html", page, "--force").code == 0


def test_report_writes_beside_the_trace(round_machine: Path, tmp_path: Path) -> None:
    trace = handmade.write_trace(tmp_path / "run.ftt", number=20)
    assert run("report", trace, "--machine", round_machine, "--policies", "+thp").code == 0
    assert (tmp_path / "run.html").exists()
    assert_refused(run("report", trace, "--machine", round_machine))


def test_trace_check_says_no_with_exit_code_1(tmp_path: Path) -> None:
    ran = run("trace", "check", handmade.write_trace(tmp_path / "lost.ftt", lost=5), "--json")
    tree = json.loads(ran.out)
    assert (ran.code, tree["ok"]) == (1, False)
    assert [check["name"] for check in tree["checks"] if not check["ok"]] == ["lost"]


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    ran = run("trace", "info", handmade.write_trace(tmp_path / "new.ftt", schema=99))
    assert_refused(ran)
    assert "schema 99" in ran.err and "upgrade" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("whatif",), "either a trace or -- COMMAND"),
        (("whatif", "--"), "either a trace or -- COMMAND"),
        (("whatif", "none.ftt"), "there is no trace none.ftt"),
        (("whatif", "none.ftt", "--", "true"), "either a trace or -- COMMAND"),
        (("whatif", "none.ftt", "--policies", "+thq"), "did you mean +thp"),
        (("whatif", "none.ftt", "--policies", ","), "no policy is named"),
        (("whatif", "none.ftt", "--machine", "vm-2cpu-zen"), "did you mean vm-2cpu-zen4"),
        (("whatif", "none.ftt", "--machine", "./none.toml"), "there is no machine file"),
        (("whatif", "none.ftt", "-o", "x.ftt"), "there is none"),
        (("record",), "either -- COMMAND or --pid"),
        (("record", "--pid", "1", "--", "true"), "either -- COMMAND or --pid"),
        (("record", "--pid", "1", "--seconds", "0"), "cannot attach for 0 seconds"),
        (("trace", "info", "none.ftt"), "there is no trace none.ftt"),
        (("report", "none.ftt"), "there is no trace none.ftt"),
        (("policies", "--show", "linux"), "there is no policy"),
    ],
)
def test_a_mistake_is_one_line_and_a_hint(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*words)
    assert_refused(ran)
    assert said.lower() in ran.err.lower()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("field", "value"), [("trap", -1.0), ("trap", float("nan")), ("copy_page", float("inf"))])
def test_a_machine_with_an_impossible_cost_is_refused(
    field: str, value: float, hand_trace: Path, tmp_path: Path
) -> None:
    import msgspec

    from firsttouch.machine import Cost

    cost = msgspec.structs.replace(handmade.machine().cost, **{field: Cost(ns=value)})
    ran = run("whatif", hand_trace, "--machine", handmade.write_machine(tmp_path / "bad.toml", cost=cost))
    assert_refused(ran)
    assert f"cost.{field}" in ran.err


def test_a_machine_without_a_cost_is_refused(round_machine: Path, hand_trace: Path, tmp_path: Path) -> None:
    text = round_machine.read_text()
    at = text.index("[cost.trap]")
    (tmp_path / "bad.toml").write_text(text[:at] + text[text.index("[", at + 1) :])
    ran = run("whatif", hand_trace, "--machine", tmp_path / "bad.toml")
    assert_refused(ran)
    assert "trap" in ran.err


def test_not_here_is_exit_code_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotHere("cannot open the event: Permission denied", "sudo sysctl kernel.perf_event_paranoid=2")

    monkeypatch.setattr(recorder, "record", refuse)
    ran = run("record", "-o", tmp_path / "x.ftt", "--", "true")
    assert_refused(ran, 3)
    assert ran.err == (
        "firsttouch record: cannot open the event: Permission denied\n  Try: sudo sysctl kernel.perf_event_paranoid=2\n"
    )


def test_what_an_error_quotes_cannot_move_the_cursor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FirsttouchError("bad \x1b[2J name\n  detail \x07")

    monkeypatch.setattr(recorder, "record", refuse)
    assert run("record", "-o", tmp_path / "x.ftt", "--", "true").err == (
        "firsttouch record: bad \\x1b[2J name\n  detail \\x07\n"
    )


def test_words_after_the_dashes_are_the_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def keep(command: list[str], path: Path, **options: object) -> recorder.Recording:
        seen.append(command)
        assert options["force"] is False
        return recorder.Recording(path, 7, 300, 0, "basic", "not root", 400, 0, 100, 1_000_000)

    monkeypatch.setattr(recorder, "record", keep)
    words = ["prog", "--json", "-o", "--", "--force", "", "a b", "--help"]
    ran = run("record", "-o", tmp_path / "x.ftt", "--", *words)
    assert seen == [words]
    assert ran.code == 7
    assert "exit status was 7" in ran.err and "because not root" in ran.err
    assert "not seen: 100 faults (25.0%)" in ran.err


@needs_recording
def test_whatif_of_a_command_keeps_stdout_for_json(round_machine: Path, tmp_path: Path) -> None:
    import subprocess

    kept = tmp_path / "kept.ftt"
    program = "import sys; print('to stdout'); b = bytearray(8 << 20); sys.exit(3)"
    done = subprocess.run(
        [sys.executable, "-m", "firsttouch", "whatif", "--json", "--machine", str(round_machine), "--policies", "+thp",
         "-o", str(kept), "--", sys.executable, "-c", program],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tree = json.loads(done.stdout)
    assert tree["trace"]["exit"] == 3
    assert "to stdout" in done.stderr and "exit status was 3" in done.stderr
    assert tree["trace"]["touches"] >= (8 << 20) // 4096
    assert kept.exists()


@needs_recording
def test_record_refuses_a_missing_program(tmp_path: Path) -> None:
    ran = run("record", "-o", tmp_path / "x.ftt", "--", "/no/such/program")
    assert_refused(ran)
    assert "/no/such/program" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_the_demo_without_recording_shows_the_bundled_trace(
    monkeypatch: pytest.MonkeyPatch, round_machine: Path
) -> None:
    from firsttouch import machine
    from firsttouch.host import store

    def refuse(*_: object, **__: object) -> None:
        raise NotHere("cannot open the event", "ask root")

    monkeypatch.setattr(recorder, "record", refuse)
    monkeypatch.setattr(store, "find", lambda: machine.load(round_machine))
    ran = run("demo")
    assert ran.code == 0
    assert "recording is not possible here: cannot open the event" in ran.err
    assert "recorded elsewhere" in ran.err
    assert "pipeline.py" in ran.out and "+thp" in ran.out


@pytest.mark.parametrize(
    ("hint", "line"),
    [
        ("sudo this", "  Try: sudo this\n"),
        ("try: chmod +x it", "  Try: chmod +x it\n"),
        ("try linux-6.18+thp", "  Try: linux-6.18+thp\n"),
        ("did you mean that?", "  Did you mean that?\n"),
        ("", ""),
    ],
)
def test_a_hint_reads_as_one(hint: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    from firsttouch.cli.terminal import print_error

    print_error(FirsttouchError("no", hint), "trace check")
    assert capsys.readouterr().err == "firsttouch trace check: no\n" + line
