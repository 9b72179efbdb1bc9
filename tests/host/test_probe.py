"""Facts read from file trees that stand for other machines."""

from pathlib import Path

import pytest

from firsttouch.host import probe


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


CACHE = "sys/devices/system/cpu/cpu0/cache"


def cache(index: int, level: int, kind: str, size: str, line: int = 64) -> dict[str, str]:
    folder = f"{CACHE}/index{index}"
    return {
        f"{folder}/level": f"{level}\n",
        f"{folder}/type": f"{kind}\n",
        f"{folder}/size": f"{size}\n",
        f"{folder}/coherency_line_size": f"{line}\n",
    }


def test_caches_are_the_l2_and_the_outermost(tmp_path: Path) -> None:
    plant(
        tmp_path,
        cache(0, 1, "Data", "48K")
        | cache(1, 1, "Instruction", "32K")
        | cache(2, 2, "Unified", "2048K")
        | cache(3, 3, "Unified", "36M", 128),
    )
    assert probe.caches(tmp_path) == (128, 2 << 20, 36 << 20)


def test_a_machine_without_l3_shares_its_l2(tmp_path: Path) -> None:
    plant(tmp_path, cache(0, 1, "Data", "32K") | cache(1, 2, "Unified", "512K"))
    assert probe.caches(tmp_path) == (64, 512 << 10, 512 << 10)


def test_hidden_caches_get_the_usual_sizes(tmp_path: Path) -> None:
    assert probe.caches(tmp_path) == (64, 1 << 20, 1 << 20)


@pytest.mark.parametrize(
    ("cgroup", "files", "limit_kib"),
    [
        ("0::/a/b\n", {"sys/fs/cgroup/a/memory.max": "1048576\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 1024),
        ("0::/a\n", {"sys/fs/cgroup/memory.max": "2097152\n"}, 2048),  # a container sees its own group as the top
        ("4:cpu,memory:/x\n0::/\n", {"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "3145728\n"}, 3072),
        ("4:memory:/x\n", {"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712\n"}, 8192),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "max\n"}, 8192),
        ("", {}, 8192),
    ],
)
def test_memory_is_what_the_tightest_group_allows(
    tmp_path: Path, cgroup: str, files: dict[str, str], limit_kib: int
) -> None:
    plant(tmp_path, {"proc/meminfo": "MemTotal:  8192 kB\nMemFree: 1 kB\n", "proc/self/cgroup": cgroup} | files)
    assert probe.memory_bytes(tmp_path) == limit_kib * 1024


VM_FLAGS = {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu hypervisor lm\n"}
METAL_FLAGS = {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu lm\n"}
CLOCKS = "sys/devices/system/clocksource/clocksource0/available_clocksource"


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (METAL_FLAGS, "none"),
        (METAL_FLAGS | {"sys/class/dmi/id/sys_vendor": "Amazon EC2\n"}, "none"),  # a bare-metal instance
        (VM_FLAGS | {"sys/class/dmi/id/sys_vendor": "Amazon EC2\n"}, "amazon"),
        (VM_FLAGS | {"sys/class/dmi/id/sys_vendor": "QEMU\n"}, "qemu"),
        (VM_FLAGS | {"sys/class/dmi/id/product_name": "KVM\n", "sys/class/dmi/id/sys_vendor": "QEMU\n"}, "kvm"),
        (VM_FLAGS | {"sys/class/dmi/id/sys_vendor": "VMware, Inc.\n"}, "vmware"),
        (VM_FLAGS | {CLOCKS: "kvm-clock tsc acpi_pm\n"}, "kvm"),  # no DMI at all
        (VM_FLAGS | {CLOCKS: "hyperv_clocksource_tsc_page hyperv_clocksource\n"}, "microsoft"),
        (VM_FLAGS, "vm-other"),
        (VM_FLAGS | {"sys/hypervisor/type": "xen\n"}, "xen"),
        ({"proc/device-tree/hypervisor/compatible": "linux,kvm\0"}, "kvm"),  # Arm
    ],
)
def test_hypervisor(tmp_path: Path, files: dict[str, str], name: str) -> None:
    assert probe.hypervisor(plant(tmp_path, files)) == name


BALLOON = "sys/bus/virtio/devices/virtio0"


@pytest.mark.parametrize(
    ("files", "virtual", "reports"),
    [
        ({f"{BALLOON}/device": "0x0005\n", f"{BALLOON}/features": "000001" + "0" * 58 + "\n"}, "kvm", True),
        ({f"{BALLOON}/device": "0x0005\n", f"{BALLOON}/features": "111110" + "1" * 58 + "\n"}, "kvm", False),
        ({f"{BALLOON}/device": "0x0005\n"}, "kvm", None),
        ({f"{BALLOON}/device": "0x0002\n", f"{BALLOON}/features": "000001\n"}, "kvm", False),  # a disk, no balloon
        ({}, "none", False),
        ({}, "vmware", None),  # its balloon is not virtio
    ],
)
def test_free_page_reporting(tmp_path: Path, files: dict[str, str], virtual: str, reports: bool | None) -> None:
    assert probe.free_page_reporting(plant(tmp_path, files), virtual) is reports


def test_cpus_online(tmp_path: Path) -> None:
    plant(tmp_path, {"sys/devices/system/cpu/online": "0-3,8,10-11\n"})
    assert probe.nr_cpus(tmp_path) == 7


def test_cpus_of_cpuinfo_when_sysfs_is_hidden(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/cpuinfo": "processor : 0\nflags : x\n\nprocessor : 1\nflags : x\n"})
    assert probe.nr_cpus(tmp_path) == 2


def test_arm_is_named_by_implementer_and_part(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"})
    assert probe.cpu_name(tmp_path) == "Arm implementer 0x41 part 0xd0c"


def machine(root: Path, **changes: str) -> Path:
    files = {
        "proc/cpuinfo": "processor : 0\nmodel name : A CPU\ncpu family : 25\nmodel : 17\nflags : fpu hypervisor\n",
        "proc/meminfo": "MemTotal: 16000000 kB\n",
        "proc/sys/kernel/osrelease": "6.18.1\n",
        "proc/sys/kernel/perf_event_paranoid": "-1\n",
        "sys/kernel/debug/fault_around_bytes": "65536\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never\n",
        "sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled": "always [inherit] madvise never\n",
        "sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled": "always inherit madvise [never]\n",
        "sys/kernel/mm/transparent_hugepage/hugepages-8kB/shmem_enabled": "always [never]\n",
    }
    return plant(root, files | changes)


def test_facts_of_a_whole_machine(tmp_path: Path) -> None:
    facts = probe.facts(machine(tmp_path))
    assert facts.cpu == "A CPU (family 25, model 17)"
    assert facts.kernel == "6.18.1"
    assert (facts.thp, facts.thp_defrag) == ("madvise", "madvise")
    assert list(facts.mthp.items()) == [("64kB", "never"), ("2048kB", "inherit")]
    assert (facts.fault_around_bytes, facts.perf_event_paranoid) == (65536, -1)


def test_facts_of_nothing_are_none_not_errors(tmp_path: Path) -> None:
    facts = probe.facts(tmp_path)
    assert (facts.thp, facts.mthp) == ("", {})
    assert (facts.fault_around_bytes, facts.perf_event_paranoid) == (None, None)
    assert facts.memory_bytes > 0 and facts.nr_cpus > 0


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"proc/meminfo": "MemTotal: 15990000 kB\n"}, True),  # a boot reserved a little more
        (
            {"sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n"},
            True,
        ),  # a setting, not the machine
        ({"proc/meminfo": "MemTotal: 32000000 kB\n"}, False),
        ({"proc/sys/kernel/osrelease": "6.18.2\n"}, False),
        ({"proc/cpuinfo": "processor : 0\nmodel name : Another\n"}, False),
    ],
)
def test_the_fingerprint_tells_machines_apart(tmp_path: Path, changes: dict[str, str], same: bool) -> None:
    one = probe.facts(machine(tmp_path / "one")).fingerprint
    other = probe.facts(machine(tmp_path / "other", **changes)).fingerprint
    assert (one == other) is same
