"""A small image pipeline in NumPy: raw sensor frames to sharpened, equalised pictures and their thumbnails.

It allocates as such programs do: large buffers made once, whole-frame temporaries made and dropped in every step, a
result array made with `zeros` that is filled in part, and a list of small results that grows. Deterministic.
"""

import numpy as np

HEIGHT, WIDTH = 1024, 2048
FRAMES = 6


def sensor(number: int, noise: np.random.Generator) -> np.ndarray:
    """One raw frame of 12-bit counts (4 MiB): a gradient, moving rings, and read-out noise."""
    y = np.linspace(-1, 1, HEIGHT, dtype=np.float32)[:, None]
    x = np.linspace(-2, 2, WIDTH, dtype=np.float32)[None, :]
    radius = np.hypot(x - 0.2 * number, y)
    light = 1500 + 900 * np.sin(18 * radius) + 400 * x
    light += noise.standard_normal((HEIGHT, WIDTH), dtype=np.float32) * 12
    return np.clip(light, 0, 4095).astype(np.uint16)


def blur(image: np.ndarray, radius: int) -> np.ndarray:
    """Box blur by running sums: the two cumulative sums are the pipeline's largest temporaries (16 MiB each)."""
    width = 2 * radius + 1
    padded = np.pad(image, ((radius + 1, radius), (0, 0)), mode="edge").astype(np.float64)
    rows = np.cumsum(padded, axis=0)
    rows = (rows[width:] - rows[:-width]) / width
    padded = np.pad(rows, ((0, 0), (radius + 1, radius)), mode="edge")
    columns = np.cumsum(padded, axis=1)
    return ((columns[:, width:] - columns[:, :-width]) / width).astype(np.float32)


def equalise(image: np.ndarray) -> np.ndarray:
    """Spread the grey levels evenly, to 8 bits."""
    levels = np.clip(image, 0, 4095).astype(np.uint16)
    histogram = np.bincount(levels.ravel(), minlength=4096)
    table = np.cumsum(histogram) * (255.0 / levels.size)
    return table.astype(np.uint8)[levels]


def thumbnail(image: np.ndarray, factor: int) -> np.ndarray:
    """Mean over squares of `factor` pixels."""
    return image.reshape(HEIGHT // factor, factor, WIDTH // factor, factor).mean(axis=(1, 3), dtype=np.float32)


def main() -> None:
    """Process all frames; print a line that is the same on every run."""
    noise = np.random.default_rng(2004)
    dark = np.full((HEIGHT, WIDTH), 96, dtype=np.float32)  # 8 MiB, made once
    movie = np.zeros((2 * FRAMES, HEIGHT, WIDTH), dtype=np.uint8)  # 24 MiB, half of it used
    mean = np.zeros((HEIGHT, WIDTH), dtype=np.float64)  # 16 MiB
    thumbnails = []
    for number in range(FRAMES):
        frame = sensor(number, noise).astype(np.float32) - dark
        sharp = frame + 0.8 * (frame - blur(frame, 4))
        mean += sharp
        movie[number] = equalise(sharp)
        thumbnails.append(thumbnail(sharp, 16))
    stack = np.stack(thumbnails)
    scaled = np.empty((4, HEIGHT, WIDTH), dtype=np.float64)  # 64 MiB: the mean at four exposures
    for exposure in range(4):
        np.multiply(mean, 2.0**-exposure / FRAMES, out=scaled[exposure])
    print(
        f"{FRAMES} frames of {WIDTH} x {HEIGHT}: mean level {scaled[0].mean():.1f}, "
        f"grey {movie[:FRAMES].mean():.1f}, thumbnails {stack.shape[1]} x {stack.shape[2]}"
    )


if __name__ == "__main__":
    main()
