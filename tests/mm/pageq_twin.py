"""Free pages by colour and pagezero in the most obvious Python: lists, fractions, a set of zeroed pages."""

from fractions import Fraction
from math import floor


class QueuesTwin:
    def __init__(self, nr_pages, nr_colours):
        self.nr_colours = nr_colours
        self.queues = [list(range(colour, nr_pages, nr_colours)) for colour in range(nr_colours)]
        self.zeroed = set()
        self.reached, self.rover = False, 0

    @property
    def nr_free(self):
        return sum(map(len, self.queues))

    @property
    def nr_zeroed(self):
        return sum(page in self.zeroed for queue in self.queues for page in queue)

    def look(self, colour, want_zeroed):
        if self.queues[colour]:
            return self.queues[colour][-1 if want_zeroed else 0]
        for away in range(self.nr_colours // 2, 0, -1):
            for other in (colour + away, colour - away):
                queue = self.queues[other % self.nr_colours]
                if queue:
                    return queue[0]
        return None

    def alloc(self, colour, want_zeroed):
        """(page or None, whether it is handed out as zeroed)"""
        page = self.look(colour, want_zeroed)
        if page is None:
            return None, False
        self.queues[page % self.nr_colours].remove(page)
        was_zeroed = page in self.zeroed
        self.zeroed.discard(page)
        return page, was_zeroed and want_zeroed

    def free(self, page):
        self.queues[page % self.nr_colours].insert(0, page)

    def wants(self, low=Fraction(2, 3), high=Fraction(4, 5)):
        start_below = floor(self.nr_free * (low if self.reached else high))
        return self.nr_zeroed < min(start_below, floor(self.nr_free * high))

    def turn(self, stride, high=Fraction(4, 5)):
        """The page that is now zeroed, or None."""
        page = self.look(self.rover, False)
        self.rover = (self.rover + stride) % self.nr_colours
        self.reached = False
        if page is None or page in self.zeroed:
            return None
        queue = self.queues[page % self.nr_colours]
        queue.remove(page)
        queue.append(page)
        self.zeroed.add(page)
        self.reached = self.nr_zeroed >= floor(self.nr_free * high)
        return page
