"""A simulation in plain NumPy: waves in a basin with an uneven floor, as one writes it first.

python waves.py [STEPS]
"""

import sys

import numpy as np

SIDE = 2048


def step(now: np.ndarray, before: np.ndarray, speed2: np.ndarray, damping: float) -> np.ndarray:
    """The next state (32 MiB), by the five-point Laplacian."""
    laplacian = -4 * now
    laplacian += np.roll(now, 1, 0) + np.roll(now, -1, 0) + np.roll(now, 1, 1) + np.roll(now, -1, 1)
    return (2 - damping) * now - (1 - damping) * before + speed2 * laplacian


def main() -> None:
    """All steps; a line that is the same on every run."""
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    depth = 0.3 + 0.2 * np.sin(9 * x) * np.cos(7 * y)
    speed2 = 0.4 * depth
    now = np.exp(-((x - 0.3) ** 2 + (y - 0.6) ** 2) * 4000)
    before = now.copy()
    energy = []
    for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 40):
        now, before = step(now, before, speed2, 0.001), now
        if number % 10 == 0:
            energy.append(float(np.square(now - before).sum() + (speed2 * np.square(np.gradient(now, axis=0))).sum()))
    print(f"energy {energy[0]:.6f} to {energy[-1]:.6f}, highest {now.max():.6f}")


if __name__ == "__main__":
    main()
