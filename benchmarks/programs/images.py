"""An image pipeline with SciPy: frames are smoothed, their edges found, their brightness evened out, spots counted.

python images.py [FRAMES]
"""

import sys

import numpy as np
from scipy import ndimage

HEIGHT, WIDTH = 2048, 3072


def frame(number: int, random: np.random.Generator) -> np.ndarray:
    """A raw frame of 16-bit counts: spots on an uneven background, and noise."""
    image = random.poisson(40, (HEIGHT, WIDTH)).astype(np.float32)
    y, x = random.integers(0, HEIGHT, 400), random.integers(0, WIDTH, 400)
    image[y, x] += 20_000
    image = ndimage.uniform_filter(image, 9)
    image += np.linspace(0, 30 + number, WIDTH, dtype=np.float32)
    return image.clip(0, 65_535).astype(np.uint16)


def process(raw: np.ndarray) -> tuple[np.ndarray, int]:
    """Edges of one frame, in 8 bits, and the number of spots."""
    image = raw.astype(np.float32)
    background = ndimage.zoom(ndimage.uniform_filter(image[::8, ::8], 33), 8, order=1)
    flat = image - background[:HEIGHT, :WIDTH]
    smooth = ndimage.gaussian_filter(flat, 1.5)
    edges = np.hypot(ndimage.sobel(smooth, 0), ndimage.sobel(smooth, 1))
    low, high = np.percentile(edges[::4, ::4], (1, 99))
    stretched = ((edges - low) * (255 / (high - low))).clip(0, 255).astype(np.uint8)
    _, spots = ndimage.label(smooth > smooth.mean() + 6 * smooth.std())
    return stretched, spots


def main() -> None:
    """All frames; a line that is the same on every run."""
    random = np.random.default_rng(7)
    total, checksum = 0, 0
    for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 8):
        picture, spots = process(frame(number, random))
        total += spots
        checksum += int(picture[::16, ::16].sum())
    print(f"{total} spots, checksum {checksum}")


if __name__ == "__main__":
    main()
