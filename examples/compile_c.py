"""Compile words.c with gcc -O2: short-lived processes, each with a heap of its own that grows and dies with it."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> int:
    """Compile, and report; 0 with a reason where there is no gcc."""
    gcc = shutil.which("gcc")
    if gcc is None:
        print("skipped: there is no gcc on this machine (on Debian: apt-get install gcc)")
        return 0
    source = Path(__file__).resolve().with_name("words.c")
    with tempfile.TemporaryDirectory(prefix="compile-c-") as folder:
        program = Path(folder) / "words"
        command = [gcc, "-std=c11", "-O2", "-Wall", "-o", str(program), str(source)]
        status = subprocess.run(command, check=False).returncode
        size = program.stat().st_size if program.exists() else 0
    print(f"gcc -O2 {source.name}: exit {status}, program of {size} bytes")
    return status


if __name__ == "__main__":
    sys.exit(main())
