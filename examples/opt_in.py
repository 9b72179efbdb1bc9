"""A program that takes advice from outside: FIRSTTOUCH_POPULATE=1 makes it populate its memory as it maps it,
FIRSTTOUCH_MADV_RANDOM=1 tells the kernel that it reads its file in no order.

`firsttouch verify --programs opt-in --knobs never,populate,madv-random` compares.
"""

import mmap
import os
import tempfile

MEMORY_BYTES, FILE_BYTES = 64 << 20, 16 << 20
MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it


def wanted(name: str) -> bool:
    """Whether the variable asks for it."""
    return os.environ.get(name) == "1"


def main() -> None:
    """Fill memory, read a file page by page, and print a line that is the same on every run."""
    memory = mmap.mmap(-1, MEMORY_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if wanted("FIRSTTOUCH_POPULATE"):
        memory.madvise(MADV_POPULATE_WRITE)
    for at in range(0, MEMORY_BYTES, mmap.PAGESIZE):
        memory[at] = 1
    with tempfile.TemporaryFile() as file:
        file.write(bytes(range(256)) * (FILE_BYTES // 256))
        file.flush()
        pages = mmap.mmap(file.fileno(), FILE_BYTES, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
        if wanted("FIRSTTOUCH_MADV_RANDOM"):
            pages.madvise(mmap.MADV_RANDOM)
        total = sum(pages[at + 7] for at in range(0, FILE_BYTES, mmap.PAGESIZE))
    print(f"{MEMORY_BYTES >> 20} MiB written, {FILE_BYTES >> 20} MiB read: {total}")


if __name__ == "__main__":
    main()
