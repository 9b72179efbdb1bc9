"""What each knob means, on machines made of files."""

import os
from pathlib import Path

import pytest

from firsttouch.errors import FirsttouchError
from firsttouch.host import catalogue, probe
from firsttouch.host.catalogue import KNOBS, THP_ADVISED_ONLY, THP_AS_IS, THP_OFF, Setting, resolve

THP = "sys/kernel/mm/transparent_hugepage"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A Linux 6.18 machine set to madvise, with 64 KiB on advice."""
    files = {
        f"{THP}/enabled": "always [madvise] never\n",
        f"{THP}/defrag": "always defer defer+madvise [madvise] never\n",
        f"{THP}/use_zero_page": "1\n",
        f"{THP}/khugepaged/scan_sleep_millisecs": "10000\n",
        f"{THP}/hugepages-16kB/enabled": "always inherit madvise [never]\n",
        f"{THP}/hugepages-64kB/enabled": "always inherit [madvise] never\n",
        f"{THP}/hugepages-2048kB/enabled": "always [inherit] madvise never\n",
        "proc/sys/kernel/osrelease": "6.18.1\n",
        "proc/cmdline": "quiet init_on_alloc=1\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def meaning(root: Path, name: str) -> Setting:
    return resolve(name, probe.facts(root), root)


def files(root: Path, setting: Setting) -> dict[str, str]:
    return {path.removeprefix(f"{root}/{THP}/"): value for path, value in setting.files.items()}


ALL_OFF = {
    "enabled": "never", "hugepages-16kB/enabled": "never", "hugepages-64kB/enabled": "never",
    "hugepages-2048kB/enabled": "inherit",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changes", "policy"),
    [
        ("never", {}, "linux-6.18"),
        ("linux-6.18", {}, "linux-6.18"),
        ("thp", {"enabled": "always"}, "linux-6.18+thp"),
        ("+thp", {"enabled": "always"}, "linux-6.18+thp"),
        ("linux-6.18+thp-madvise", {"enabled": "madvise"}, "linux-6.18+thp-madvise"),
        ("mthp-16k", {"hugepages-16kB/enabled": "always"}, "linux-6.18+mthp-16k"),
        ("thp+mthp-64k", {"enabled": "always", "hugepages-64kB/enabled": "always"}, "linux-6.18+thp+mthp-64k"),
        ("thp+defrag-defer-madvise", {"enabled": "always", "defrag": "defer+madvise"}, "linux-6.18+thp"),
        ("khugepaged-off", {"khugepaged/scan_sleep_millisecs": "3600000"}, "linux-6.18"),
    ],
)
def test_system_knobs_name_the_whole_state(root: Path, name: str, changes: dict[str, str], policy: str) -> None:
    setting = meaning(root, name)
    assert files(root, setting) == ALL_OFF | changes
    assert (setting.policy.name, setting.refused, setting.thp_disable) == (policy, "", THP_AS_IS)


def test_a_size_that_the_kernel_lacks_is_refused(root: Path) -> None:
    setting = meaning(root, "mthp-32k")
    assert setting.refused == "this kernel has no huge pages of 32 KiB"
    assert not any("32kB" in path for path in setting.files)


def test_a_kernel_without_huge_pages(tmp_path: Path) -> None:
    assert meaning(tmp_path, "thp").refused == "this kernel has no transparent huge pages"
    never = meaning(tmp_path, "never")
    assert (never.files, never.refused) == ({}, "")


def test_without_root_only_the_program_can_be_set(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    never = meaning(root, "never")
    assert (never.files, never.thp_disable, never.refused) == ({}, THP_OFF, "")
    assert meaning(root, "thp").refused == f"{root / THP / 'enabled'} needs root"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert meaning(root, "mthp-16k").refused.endswith("is read-only here")


def test_without_root_what_the_machine_is_set_to_can_be_had(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / THP / "hugepages-64kB/enabled").write_text("always inherit madvise [never]\n")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert meaning(root, "thp-madvise").refused == ""


def test_process_knobs_go_on_top_of_what_the_machine_is_set_to(root: Path) -> None:
    assert meaning(root, "no-thp").thp_disable == THP_OFF
    assert meaning(root, "no-thp").policy.superpage.thp == "never"
    (root / THP / "enabled").write_text("[always] madvise never\n")
    (root / THP / "hugepages-16kB/enabled").write_text("[always] inherit madvise never\n")
    advised = meaning(root, "thp-advised-only")
    assert (advised.files, advised.thp_disable, advised.refused) == ({}, THP_ADVISED_ONLY, "")
    pages = advised.policy.superpage
    assert (pages.thp, pages.mthp_always, pages.mthp_madvise) == ("madvise", [], [2, 4])


def test_older_kernels_lack_the_advised_only_form(root: Path) -> None:
    (root / "proc/sys/kernel/osrelease").write_text("6.12.4\n")
    assert "6.12.4" in meaning(root, "thp-advised-only").refused


def test_program_knobs_are_variables_and_need_a_recording_of_their_own(root: Path) -> None:
    for name, variable in (("numpy-no-advice", "NUMPY_MADVISE_HUGEPAGE"), ("malloc-thp", "GLIBC_TUNABLES")):
        setting = meaning(root, name)
        assert (list(setting.env), setting.own_recording, setting.opt_in) == ([variable], True, "")
    populate = meaning(root, "populate")
    assert populate.opt_in == catalogue.POPULATE_ENV and populate.own_recording


def test_the_pool_is_put_into_the_environment_and_made_of_the_plain_recording(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from firsttouch.pool.launch import SITE

    monkeypatch.setenv("PYTHONPATH", "/some/where")
    setting = meaning(root, "pool")
    assert setting.env == {"FIRSTTOUCH_POOL": "1", "PYTHONPATH": f"{SITE}:/some/where"}
    assert setting.policy.userspace.pool_threshold_bytes == 2 << 20 and not setting.own_recording


def test_boot_knobs_are_read_only(root: Path) -> None:
    assert meaning(root, "init-on-alloc").refused == ""
    assert meaning(root, "init-on-free").refused == "it takes a reboot with init_on_free=1"
    (root / "proc/cmdline").write_text("init_on_free=1 init_on_alloc=0\n")
    assert meaning(root, "init-on-free").policy.zero.init_on_free
    assert meaning(root, "init-on-alloc").refused


def test_fault_around_needs_debugfs(root: Path) -> None:
    assert "mount -t debugfs" in meaning(root, "fault-around-4k").refused
    around = root / "sys/kernel/debug/fault_around_bytes"
    around.parent.mkdir(parents=True)
    around.write_text("65536\n")
    setting = meaning(root, "fault-around-4k")
    assert (setting.files[str(around)], setting.refused) == ("4096", "")
    assert setting.policy.fault_ahead.fault_around_bytes == 4096


def test_what_no_knob_of_ours_touches_is_as_the_machine_has_it(root: Path) -> None:
    (root / THP / "use_zero_page").write_text("0\n")
    around = root / "sys/kernel/debug/fault_around_bytes"
    around.parent.mkdir(parents=True)
    around.write_text("16384\n")
    policy = meaning(root, "thp").policy
    assert (policy.superpage.use_zero_page, policy.fault_ahead.fault_around_bytes) == (False, 16384)


@pytest.mark.parametrize("name", ["thpp", "mthp-17k", "thp+", "thp+nonsense", "defrag-hard"])
def test_unknown_knobs_are_refused(root: Path, name: str) -> None:
    with pytest.raises(FirsttouchError) as caught:
        meaning(root, name)
    assert caught.value.hint


def test_every_knob_of_the_list_is_understood(root: Path) -> None:
    for knob in KNOBS:
        name = knob.name.replace("N", "16").replace("WORD", "never")
        assert meaning(root, name).name == name
