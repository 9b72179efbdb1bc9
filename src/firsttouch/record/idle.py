"""Is there CPU time that the recorded program does not want?"""

from __future__ import annotations

import os
import time
from pathlib import Path

IDLE_OVER_S = 0.1  # the kernel counts idle time in ticks of up to 10 ms
IDLE_CPUS = 0.5


class IdleWatch:
    """Whether a CPU would do nothing if the writing thread did not use it."""

    def __init__(self) -> None:
        self.idle = False
        self._at_s = time.monotonic()
        self._idle_s = self._used_s = 0.0
        self._idle_s, self._used_s = self._clocks()

    def has_idle_cpu(self) -> bool:
        """By the last tenth of a second or more: CPU time that nobody used, and what this process itself did."""
        now_s = time.monotonic()
        if now_s >= self._at_s + IDLE_OVER_S:
            idle_s, used_s = self._clocks()
            spare_s = idle_s - self._idle_s + used_s - self._used_s
            self.idle = spare_s >= IDLE_CPUS * (now_s - self._at_s)
            self._at_s, self._idle_s, self._used_s = now_s, idle_s, used_s
        return self.idle

    def _clocks(self) -> tuple[float, float]:
        """CPU seconds that all CPUs were idle, and that this process used."""
        fields = Path("/proc/stat").read_bytes().split(b"\n", 1)[0].split()
        return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK"), time.process_time()
