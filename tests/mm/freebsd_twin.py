"""A fault of FreeBSD 13 in the most obvious Python: Linux's twin, but for what differs."""

from twin import ANON, REGION, SHMEM, WRITE, Entry, Twin


class FreebsdTwin(Twin):
    """No page of zeros, no call that populates, and four neighbours on either side of a file's page."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.tables = {0: set()}  # regions of each space that have had a page-table page

    def touch(self, mm, vma, page, kind):
        self.tables[mm].add(page // REGION)
        self.here = mm
        super().touch(mm, vma, page, kind)

    def move(self, mm, start, end, to):
        self.tables[mm] |= {
            (to + page - start) // REGION for page in range(start, end) if page in self.spaces[mm].pages
        }
        super().move(mm, start, end, to)

    def fork(self, mm, child):
        super().fork(mm, child)
        self.tables[child] = {page // REGION for page in self.spaces[child].pages}

    def zero_page(self, space, page, kind, vma):
        return self.zero_fill(space, page, kind, vma)

    def fill(self, mm, vma, start, end, near):
        """There is no such call."""

    def map(self, mm, vma):
        """The first 96 pages of a file are mapped at once, as far as they are not."""
        start, end, flags = self.vmas[vma]
        if not flags & (ANON | SHMEM):
            for page in range(start, min(end, start + 96)):
                self.tables[mm].add(page // REGION)
                self.spaces[mm].pages.setdefault(page, Entry("file"))

    def file(self, space, page, kind, vma):
        start, end, _ = vma
        near = self.around(start, end, page, self.recorded_window)
        space.pages[page] = Entry("file", writable=bool(kind & WRITE))
        for distance in range(1, 5):
            for other in (page - distance, page + distance):
                has_table = other // REGION in self.tables[self.here]
                if start <= other < end and has_table and other not in space.pages:
                    space.pages[other] = Entry("file", near=other in near)
