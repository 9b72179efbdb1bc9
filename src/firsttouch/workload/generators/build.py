"""A parallel build: make -jN, whose jobs are shells that run a few short programs and one that grows, a compiler.

    make      keeps `parallel` jobs: starts that many, then one more whenever any of them ends
    job       a shell: forks, one after another, `helpers` helpers and the compiler, and waits for each
    process   begins as a copy of its parent, writes to part of what it shares with it (so does the parent: COW), execs,
              reads its program's pages (page cache), writes to some of its data (copied from the page cache), takes
              fresh memory, computes, and exits. The compiler also waits for I/O and gives temporary memory back.

**Where pages are touched.** A program's pages are read in runs, five pages of 4 KiB each in the mean, with gaps whose
lengths are log-normal (sigma 1.5). That is fitted to two published tables at once, the faults of a Linux build and of a
rebuild under fault-around windows of 1, 2, 8, 16 and 32 pages: with it, and a third of the build's faults (60 % of the
rebuild's) being reads of files, all ten numbers come out within 2 %. All processes of a program read the same pages,
in one order: they are the same pages of the page cache, mapped again and again (`Vmas.cache_page`).

**How the compiler grows.** It asks for so many bytes at a time (`growth_bytes`) and uses them in order. Asking little
by little leaves no room for a large block: at each fault the mapping ends a few pages further on.

**Directories.** Where make calls itself for each directory, nothing of the next one starts before this one is done,
and its last job, which links what the others made, runs alone (`directory_jobs`). While a single job runs, all that it
saves is saved of the wall time, however many CPUs there are.

**Builders.** With `own_files` there is no make: each slot is a process that runs jobs one after another, in a file
system of its own. So programs of different slots are different files, as for builders in clones of one jail; and slots
begin at different times, as they are amid a build.

**A sample of the jobs.** A build has thousands of jobs that differ in size only, so `scale` simulates a few of them and
`facts["weight"]` says how many each stands for: totals of the build are those of the sample times the weight. Ratios
between policies are not affected, but by what is there at the start: a sample uses up as much zeroed memory as the
whole. The sizes of a sample are the mid-quantiles of their distribution, in an order that
the seed gives, and are made to have the mean 1, so totals of a sample do not depend on its luck; each of the `parallel`
slots is filled until the last jobs, so CPUs and locks are as busy as in the whole. Only the ends weigh more: when no
job is left to start, slots stay empty until the longest of the last jobs is done, and that end is in the wall time of a
sample as it is in that of the whole; and make's own memory is touched once in both. So multiplying overstates wall
times, by less the more jobs a slot has, and alike under all policies.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from firsttouch.errors import FirsttouchError
from firsttouch.units import BASE_PAGE_BYTES, PMD_PAGES, pages
from firsttouch.workload import IMAGE, WRITABLE, Workload
from firsttouch.workload.generators.builder import Builder, at_least

RUN_UNITS, GAP_SIGMA = 5.0, 1.5  # of reads of a program, in units of 4 KiB: see above
UNIT_BYTES = 4096
GROWTH_BYTES = 131_072  # malloc asks for this much at a time
QUIRE_BYTES = 1_048_576  # gcc's garbage collector, where it maps memory: 256 pages of 4 KiB
KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Program:
    """A program as one process uses it."""

    file_bytes: int  # text and read-only data, libraries included
    read_ratio: float  # of them that a process reads
    data_bytes: int  # of the file's private data that it writes
    fresh_bytes: int  # stack, heap, zero-initialised data
    library_bytes: int = 0  # text is of libraries of this size, mapped one by one; 0: of one file, which exec maps


@dataclass(frozen=True)
class Build:
    """One build: its jobs, what each does to memory, and what the whole takes besides page faults."""

    jobs: int
    parallel: int  # N of make -jN
    shell: Program
    helper: Program
    compiler: Program
    helpers: int  # a job
    user_s: float  # of the whole build: computing
    kernel_s: float  # of the whole: kernel time other than page faults (exec, open, read, write, fork, exit)
    io_s: float = 0.0  # of the whole: waits for I/O
    make_s: float = 0.0  # of the whole: make's own computing, before each job
    make_bytes: int = MIB  # what make itself has touched
    copied_bytes: int = 60 * KIB  # that a child writes before it execs
    rewritten_bytes: int = 20 * KIB  # that its parent writes after the fork
    temporary_ratio: float = 0.2  # of the compiler's fresh memory that it gives back, and takes anew
    size_sigma: float = 0.6  # compilations are log-normal in size
    growth_bytes: int = GROWTH_BYTES  # that the compiler asks for at a time
    directory_jobs: int = 0  # between waits for all of them, the last one alone; 0: one directory
    own_files: bool = False  # each of the parallel slots works in a file system of its own, with copies of the programs


# What is published is exact: jobs in parallel, user time, system time (kernel_s is what is left of it when a fault
# takes a few microseconds), and page reclaims or minor faults, which fix the number of jobs. Sizes of programs and
# their shares of the faults are typical values.
BUILDS = {
    # makeworld -j4 of FreeBSD RELENG_4, 2006: 14,202,993 page reclaims, user 815.59 s, system 194.92 s, real 656.36 s
    # on 2 CPUs; 14,686 block reads, of 8 ms. cc, cpp and as are the helpers, cc1 of gcc 2.95 the compiler. About a
    # thousand directories are gone through. The user time is less by what fresh pages' lines take, 1.2 us a page.
    "makeworld": Build(
        jobs=14_000, parallel=4, helpers=3, user_s=802.0, kernel_s=141.6, io_s=117.0, make_bytes=2 * MIB,
        directory_jobs=7,
        shell=Program(420 * KIB, 0.38, 20 * KIB, 80 * KIB),
        helper=Program(640 * KIB, 0.38, 40 * KIB, 160 * KIB),
        compiler=Program(2600 * KIB, 0.38, 160 * KIB, 2400 * KIB),
    ),
    # pkgsrc/lang/python37 on NetBSD, 2020, one job at a time: user 11,117 s, system 1,172 s, real 12,414 s on one CPU.
    # Most of it is configure, whose programs are small: 40,000 processes in all, at 13 ms of kernel time each on this
    # CPU and 7 ms on the other, where makeworld's took 2 ms on one of 2 GHz.
    "python-405gpr": Build(
        jobs=5_700, parallel=1, helpers=5, user_s=11_099.0, kernel_s=534.0, io_s=125.0,
        shell=Program(2 * MIB, 0.3, 60 * KIB, 120 * KIB),
        helper=Program(3 * MIB, 0.3, 80 * KIB, 400 * KIB),
        compiler=Program(20 * MIB, 0.25, 300 * KIB, 6 * MIB),
    ),
    # make -j60 of Linux, 2014, on 120 threads: 283,301,572 minor faults without fault-around in 151.2 s.
    "kernel": Build(
        jobs=20_200, parallel=60, helpers=5, user_s=6_800.0, kernel_s=800.0, io_s=300.0, growth_bytes=QUIRE_BYTES,
        shell=Program(3200 * KIB, 0.38, 80 * KIB, 240 * KIB),
        helper=Program(3200 * KIB, 0.38, 80 * KIB, 320 * KIB),
        compiler=Program(29 * MIB, 0.38, 240 * KIB, 34 * MIB),
    ),
    # The same when all is built already: 5,396,854 minor faults in 27.4 s; shells and small programs.
    "kernel-rebuild": Build(
        jobs=2_800, parallel=60, helpers=2, user_s=300.0, kernel_s=120.0, io_s=60.0, make_s=20.0,
        shell=Program(3200 * KIB, 0.37, 80 * KIB, 240 * KIB),
        helper=Program(3200 * KIB, 0.37, 80 * KIB, 240 * KIB),
        compiler=Program(3200 * KIB, 0.37, 80 * KIB, 1772 * KIB),
    ),
    # make -j60 test of git, 2014: 129,591,823 minor faults in 66.1 s; shells that start git for a few milliseconds.
    "git-test": Build(
        jobs=71_300, parallel=60, helpers=2, user_s=1_500.0, kernel_s=2_000.0, io_s=100.0,
        shell=Program(3200 * KIB, 0.37, 80 * KIB, 160 * KIB),
        helper=Program(3200 * KIB, 0.37, 80 * KIB, 160 * KIB),
        compiler=Program(3200 * KIB, 0.37, 80 * KIB, 1416 * KIB),
    ),
    # make -j3 vmlinux, 2004, on 2 CPUs: user 954 s, system 60.5 s, real 513 s.
    "kernel-2004": Build(
        jobs=1_100, parallel=3, helpers=3, user_s=954.2, kernel_s=46.4, io_s=12.0,
        shell=Program(1800 * KIB, 0.3, 60 * KIB, 160 * KIB),
        helper=Program(1800 * KIB, 0.3, 60 * KIB, 240 * KIB),
        compiler=Program(5 * MIB, 0.38, 160 * KIB, 10 * MIB),
    ),
    # poudriere -j 104 on FreeBSD, 2019, 90 minutes on 104 CPUs, which fixes jobs by their times; its packages are C++
    # for the most part, and configure. Faults are not published: as many a CPU second as in the Linux build, 16,000.
    "packages": Build(
        jobs=370_000, parallel=104, helpers=12, user_s=420_000.0, kernel_s=70_000.0, io_s=20_000.0, own_files=True,
        shell=Program(2 * MIB, 0.3, 60 * KIB, 120 * KIB, 512 * KIB),
        helper=Program(3 * MIB, 0.38, 80 * KIB, 400 * KIB, 512 * KIB),
        compiler=Program(60 * MIB, 0.2, 400 * KIB, 46 * MIB),
    ),
}  # fmt: skip
# The same build on the Cavium CN50xx: 8 KiB pages, user 2,862 s, system 473 s, real 3,608 s.
BUILDS["python-cn50xx"] = replace(BUILDS["python-405gpr"], user_s=2_862.35, kernel_s=281.0, io_s=270.0)
# make of Linux on arm64, 2023. Only changes are published, of real, kernel and user time; the first follows from the
# other two where kernel time is 11 % of the whole. kernel_s is that, less the faults as the machine's fit has them.
BUILDS["kernel-2023"] = replace(BUILDS["kernel"], kernel_s=320.0)


def build(
    of: str | Build = "makeworld",
    *,
    scale: float = 0.01,
    parallel: int | None = None,
    seed: int = 1,
    page_bytes: int = BASE_PAGE_BYTES,
    lines_touched: int = 32,
) -> Workload:
    """A parallel build, or a sample of its jobs.

    Parameters
    ----------
    of
        One of `BUILDS`, or a build of your own.
    scale
        The share of the jobs to simulate; there are at least four for each slot. `facts["weight"]` says how many jobs
        each stands for.
    parallel
        Jobs at a time, instead of the build's own.
    seed
        Of the order of sizes, and of which pages of a program are read.
    page_bytes, lines_touched
        Of the machine it will run on; cache lines of each page that its process uses.

    Raises FirsttouchError for a parameter out of range.
    """
    if isinstance(of, str):
        if of not in BUILDS:
            raise FirsttouchError(f"build: there is no build {of!r}", f"there are {', '.join(BUILDS)}")
        name, shape = of, BUILDS[of]
    else:
        name, shape = "build", of
    shape = shape if parallel is None else replace(shape, parallel=parallel)
    _check(shape, scale, seed)
    nr_jobs = min(shape.jobs, max(4 * shape.parallel, round(shape.jobs * scale)))
    b = Builder(f"{name} -j{shape.parallel}, {nr_jobs} of {shape.jobs} jobs", page_bytes)
    _Make(b, shape, nr_jobs, np.random.default_rng(seed)).run()
    weight = shape.jobs / nr_jobs
    return b.workload(lines_touched=lines_touched, facts={"jobs": shape.jobs, "simulated": nr_jobs, "weight": weight})


def _check(shape: Build, scale: float, seed: int) -> None:
    for field, least in (
        ("jobs", 1), ("parallel", 1), ("helpers", 0), ("user_s", 0), ("kernel_s", 0), ("io_s", 0), ("make_s", 0),
        ("make_bytes", 0), ("copied_bytes", 0), ("rewritten_bytes", 0), ("temporary_ratio", 0), ("size_sigma", 0),
        ("growth_bytes", 1), ("directory_jobs", 0),
    ):  # fmt: skip
        at_least("build", field, getattr(shape, field), least)
    at_least("build", "seed", seed, 0)
    for who in ("shell", "helper", "compiler"):
        program: Program = getattr(shape, who)
        at_least("build", f"{who}.file_bytes", program.file_bytes, 0)
        at_least("build", f"{who}.data_bytes", program.data_bytes, 0)
        at_least("build", f"{who}.fresh_bytes", program.fresh_bytes, 1)
        if not 0 < program.read_ratio <= 1:
            raise FirsttouchError(f"build: {who}.read_ratio is {program.read_ratio}", "it is above 0 and at most 1")
    if not 0 < scale <= 1:
        raise FirsttouchError(f"build: scale is {scale}; it must be above 0 and at most 1", "give 0.01")
    if shape.temporary_ratio >= 1:
        raise FirsttouchError(f"build: temporary_ratio is {shape.temporary_ratio}; it must be below 1", "give 0.2")


def sizes(number: int, sigma: float) -> list[float]:
    """The mid-quantiles of a log-normal distribution, ascending, with mean 1."""
    normal = NormalDist()
    raw = [math.exp(sigma * normal.inv_cdf((i + 0.5) / number)) for i in range(number)]
    mean = math.fsum(raw) / number
    return [size / mean for size in raw]


def reads(nr_units: int, ratio: float, rng: np.random.Generator) -> list[tuple[int, int]]:
    """The runs of a file of `nr_units` that a process reads, in the order of their addresses: `ratio` of its units."""
    wanted = round(nr_units * ratio)
    lengths: list[int] = []
    while (left := wanted - sum(lengths)) > 0:
        lengths.append(min(left, int(rng.geometric(1 / RUN_UNITS))))
    gaps = rng.lognormal(0.0, GAP_SIGMA, len(lengths) + 1)  # one before each run, and one at the end
    skipped = np.cumsum(gaps / gaps.sum() * (nr_units - wanted)).astype(int).tolist()
    before = np.concatenate([[0], np.cumsum(lengths)]).astype(int).tolist()
    return [(skipped[i] + before[i], skipped[i] + before[i + 1]) for i in range(len(lengths))]


class _Image:
    """A program's address space: file, private data, heap from there on, temporary memory a region further."""

    def __init__(self, b: Builder, program: Program, most: float, growth_bytes: int, rng: np.random.Generator) -> None:
        self.program = program
        size = b.page_bytes
        nr_text, self.nr_data = pages(program.file_bytes, size), pages(program.data_bytes, size)
        touched: set[int] = set()
        for start, end in reads(program.file_bytes // UNIT_BYTES, program.read_ratio, rng):
            touched.update(range(start * UNIT_BYTES // size, pages(end * UNIT_BYTES, size)))
        self.runs = _runs(sorted(touched))
        rng.shuffle(self.runs)
        self.nr_read = len(touched)
        self.data_start = nr_text
        self.heap = nr_text + self.nr_data
        self.texts: list[tuple[int, int, int]] = []  # [start, end, mapping]
        self.data = -1
        self.nr_heap = max(1, math.ceil(pages(program.fresh_bytes, size) * most))
        self.step = max(1, growth_bytes // size)
        tops = range(self.step, self.nr_heap + self.step, self.step)
        self.grown = [b.mapping(self.heap, self.heap + top) for top in tops]  # [times grown - 1]
        self.temporary = -(-(self.heap + self.nr_heap + self.step) // PMD_PAGES) * PMD_PAGES
        self.whole_heap = b.mapping(self.heap, self.heap + self.nr_heap)
        self.passing = b.mapping(self.temporary, self.temporary + self.step)
        self.nr_pages = self.temporary + self.step

    def files(self, b: Builder, nr_copies: int) -> list[_Image]:
        """The program in files of its own, so many times; copies of one file are neighbours in the page cache."""
        library, text, end = pages(self.program.library_bytes, b.page_bytes), self.data_start, self.heap
        cuts = [(first, min(text, first + library)) for first in range(0, text, library)] if library else [(0, text)]
        images = [copy(self) for _ in range(nr_copies)]
        for image in images:
            image.texts = []
        for first, last in cuts if text else []:
            for image in images:
                vma = b.mapping(first, last, 0 if library else IMAGE, b.file(last - first))
                image.texts.append((first, last, vma))
        for image in images if self.nr_data else []:
            image.data = b.mapping(text, end, WRITABLE | IMAGE, b.file(end - text))
        return images


def _runs(touched: list[int]) -> list[list[int]]:
    """Ascending pages as [start, end] of neighbours."""
    runs: list[list[int]] = []
    for page in touched:
        if runs and runs[-1][1] == page:
            runs[-1][1] += 1
        else:
            runs.append([page, page + 1])
    return runs


class _Make:
    """make, and all that it starts."""

    def __init__(self, b: Builder, shape: Build, nr_jobs: int, rng: np.random.Generator) -> None:
        self.b, self.shape, self.nr_jobs = b, shape, nr_jobs
        self.sizes = sizes(nr_jobs, shape.size_sigma)
        images = {
            "shell": _Image(b, shape.shell, 1.0, GROWTH_BYTES, rng),
            "helper": _Image(b, shape.helper, 1.0, GROWTH_BYTES, rng),
            "compiler": _Image(b, shape.compiler, self.sizes[-1], shape.growth_bytes, rng),
        }
        nr_copies = min(shape.parallel, nr_jobs) if shape.own_files else 1
        copies = {who: image.files(b, nr_copies) for who, image in images.items()}
        self.copies = [{who: copies[who][slot] for who in images} for slot in range(nr_copies)]  # [slot] its files
        rng.shuffle(self.sizes)
        # Computing goes with the pages a process touches, other kernel time with processes.
        touched = {who: i.nr_read + i.nr_data + pages(i.program.fresh_bytes, b.page_bytes)
                   for who, i in images.items()}  # fmt: skip
        nr_touched = touched["shell"] + shape.helpers * touched["helper"] + touched["compiler"]
        self.think_ns = round(shape.user_s * 1e9 / shape.jobs / nr_touched)
        self.kernel_ns = round(shape.kernel_s * 1e9 / shape.jobs / (shape.helpers + 2))
        self.make_ns = round(shape.make_s * 1e9 / shape.jobs)
        self.io_ns = round(shape.io_s * 1e9 / shape.jobs)
        self.make_pages = max(1, pages(shape.make_bytes, b.page_bytes))

    def run(self) -> None:
        """The build."""
        if self.shape.own_files:
            self.run_builders()
        else:
            self.run_make()

    def run_builders(self) -> None:
        """One process a slot, begun one after another over the time of a job: amid a build they are at all stages."""
        b, shape = self.b, self.shape
        first = b.thread(b.space(1))
        own, memory = b.mapping(0, self.make_pages), (0, self.make_pages)
        builders = []
        for slot, images in enumerate(self.copies):
            builder = b.fork(first, b.space(1))
            builders.append(builder)
            b.exec(builder, b.space(self.make_pages))
            b.touch(builder, own, *memory)
            for size in self.sizes[slot :: len(self.copies)]:
                shell = self.spawn(builder, own, memory, images["shell"], self.make_ns)
                self.job(shell, images, size)
                b.exit(shell)
                b.join(builder, shell)
            b.sleep(first, round((shape.user_s + shape.kernel_s + shape.io_s) * 1e9 / shape.jobs / len(self.copies)))
        for builder in builders:
            b.join(first, builder)

    def run_make(self) -> None:
        """One make that starts all jobs."""
        b, shape, images = self.b, self.shape, self.copies[0]
        make, own = b.thread(b.space(self.make_pages)), b.mapping(0, self.make_pages)
        b.touch(make, own, 0, self.make_pages)
        running = 0
        for nr, size in enumerate(self.sizes):
            alone = shape.directory_jobs > 0 and (nr + 1) % shape.directory_jobs == 0
            follows = shape.directory_jobs > 0 and nr % shape.directory_jobs == 0
            while running == shape.parallel or ((alone or follows) and running):
                b.wait(make)
                running -= 1
            shell = self.spawn(make, own, (0, self.make_pages), images["shell"], self.make_ns)
            self.job(shell, images, size)
            b.wake(shell, make)
            b.exit(shell)
            running += 1
        for _ in range(running):
            b.wait(make)

    def spawn(self, parent: int, own: int, shared: tuple[int, int], image: _Image, think_ns: int = 0) -> int:
        """Fork and exec. Both write to the first of the pages `shared`, of the parent's mapping `own`."""
        b, shape = self.b, self.shape
        start, end = shared
        child = b.fork(parent, b.space(end), think_ns=think_ns)
        for who, wanted in ((parent, shape.rewritten_bytes), (child, shape.copied_bytes)):
            nr = min(pages(wanted, b.page_bytes), end - start)
            if nr:
                b.touch(who, own, start, start + nr)
        b.exec(child, b.space(image.nr_pages))
        b.syscall(child, self.kernel_ns)
        return child

    def job(self, shell: int, images: dict[str, _Image], size: float) -> None:
        """What a shell does, its exit apart."""
        b, image = self.b, images["shell"]
        self.use(shell, image, 1.0)
        for i in range(self.shape.helpers + 1):
            who = "compiler" if i == self.shape.helpers else "helper"
            shared = (image.heap, image.heap + image.nr_heap)
            child = self.spawn(shell, image.whole_heap, shared, images[who])
            if who == "compiler" and self.io_ns:
                b.sleep(child, self.io_ns, io=True)
            self.use(child, images[who], size if who == "compiler" else 1.0)
            b.exit(child)
            b.join(shell, child)

    def use(self, process: int, image: _Image, size: float) -> None:
        """Read the program, write its data, and grow, the reads spread over the growth."""
        b, think_ns = self.b, self.think_ns
        for start, end, vma in image.texts:
            b.map(process, vma, start, end)
        if image.nr_data:
            b.map(process, image.data, image.data_start, image.heap)
            b.touch(process, image.data, image.data_start, image.heap, think_ns=think_ns)
        passing_ratio = self.shape.temporary_ratio if image.program is self.shape.compiler else 0.0
        nr_fresh = max(1, round(pages(image.program.fresh_bytes, b.page_bytes) * size))
        nr_kept = max(1, round(nr_fresh * (1 - passing_ratio)))
        nr_steps = -(-nr_kept // image.step)
        passed = read = 0
        # What is read does not grow with the size of the input, but the time taken does.
        read_ns = round(think_ns * size)
        for i in range(nr_steps):
            until = len(image.runs) * (i + 1) // nr_steps
            for start, end in image.runs[read:until]:
                for first, last, vma in image.texts:
                    if start < last and first < end:
                        b.touch(process, vma, max(start, first), min(end, last), kind=0, think_ns=read_ns)
            read = until
            start, end = i * image.step, min(nr_kept, (i + 1) * image.step)
            b.map(process, image.grown[i], image.heap + start, image.heap + start + image.step)
            b.touch(process, image.grown[i], image.heap + start, image.heap + end, think_ns=think_ns)
            due = (nr_fresh - nr_kept) * (i + 1) // nr_steps
            while passed < due:
                nr = min(image.step, due - passed)
                b.map(process, image.passing, image.temporary, image.temporary + nr)
                b.touch(process, image.passing, image.temporary, image.temporary + nr, think_ns=think_ns)
                b.unmap(process, image.temporary, image.temporary + nr)
                passed += nr
