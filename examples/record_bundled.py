"""Record the traces that ship inside the package, src/firsttouch/bundled/*.ftt, anew: `make bundled`, as root.

The programs run from a copy of this folder in /tmp/ft, so that the traces name no place of the machine they were made
on; of the host, a trace keeps the kernel's version, the CPU and sizes. Each is then packed: DuckDB's usual blocks of
256 KiB would leave a short trace mostly empty.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb

from firsttouch.record.recorder import record

HERE = Path(__file__).resolve().parent
STAGE = Path("/tmp/ft")
PROGRAMS = {"pipeline": "pipeline.py", "compile": "compile_c.py", "sqlite": "sqlite_load.py"}
HOST_FACTS = ("cpu", "nr_cpus", "memory_bytes", "page_bytes", "virtual")
LIMIT_BYTES = 5_000_000


def main() -> int:
    """Record, pack, and check; 1 when the traces are too large or name this machine."""
    STAGE.mkdir(exist_ok=True)
    for file in ("pipeline.py", "compile_c.py", "sqlite_load.py", "words.c"):
        shutil.copy(HERE / file, STAGE / file)
    python = stage_python()
    bundled = HERE.parent / "src" / "firsttouch" / "bundled"
    total = 0
    for name, program in PROGRAMS.items():
        command = [str(python), str(STAGE / program)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # warm: files in cache, memory backed
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / "raw.ftt"
            result = record(command, raw, level="full")
            packed = bundled / f"{name}.ftt"
            pack(raw, packed)
        total += packed.stat().st_size
        print(f"{packed.name}: {result.touches:,} touches, {result.lost} lost, {packed.stat().st_size:,} bytes")
    strange = [path for path in sorted(bundled.glob("*.ftt")) for _ in names_outside(path)]
    for path in strange:
        print(f"{path.name} names places of this machine: {names_outside(path)}")
    print(f"{total:,} bytes in all")
    return int(total > LIMIT_BYTES or bool(strange))


def stage_python() -> Path:
    """A Python with NumPy at an ordinary place: an environment under /tmp/ft."""
    python = STAGE / "venv" / "bin" / "python"
    if not python.exists():
        base = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
        subprocess.run([base, "-m", "venv", str(STAGE / "venv")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "numpy"], check=True)
    return python


def pack(raw: Path, packed: Path) -> None:
    """Copy a trace into small blocks, with only the ordinary facts of the host."""
    packed.unlink(missing_ok=True)
    db = duckdb.connect()
    db.execute(f"ATTACH '{raw}' AS raw (READ_ONLY)")
    db.execute(f"ATTACH '{packed}' AS packed (BLOCK_SIZE 16384)")
    db.execute("COPY FROM DATABASE raw TO packed")
    keep = ", ".join(f"'{fact}', value->'{fact}'" for fact in HOST_FACTS)
    keep += ", 'kernel', regexp_extract(value->>'kernel', '^[0-9.]+')"  # without the build's own suffix
    db.execute(f"UPDATE packed.meta SET value = json_object({keep})::VARCHAR WHERE key = 'host'")
    db.execute("CHECKPOINT packed")
    db.close()


def names_outside(path: Path) -> list[str]:
    """Mapped files that do not lie in the usual places."""
    with duckdb.connect(str(path), read_only=True) as db:
        usual = "^(/usr/|/lib|/etc/|/tmp/|/dev/|/memfd|/SYSV|//anon|//null|\\[|$)"
        rows = db.execute(f"SELECT DISTINCT name FROM map WHERE NOT regexp_matches(name, '{usual}')").fetchall()
    return [name for (name,) in rows]


if __name__ == "__main__":
    sys.exit(main())
