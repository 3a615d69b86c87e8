"""Arrays as PNG images: frames, and stacks of frames as film strips."""

from __future__ import annotations

import base64
import io
from typing import NamedTuple

import numpy as np

from di_store.base.dtypes import Array

MOST_CHANNELS = 16
"""A last axis of at most this size holds channels or frames."""

_LEAST_SIDE, _MOST_SIDE = 8, 4096
_GAP = 2  # pixels between two frames of a strip
_GAP_LEVEL = 128
_MOST_TIMES = 4  # how much larger a small frame is shown


class Picture(NamedTuple):
    """A PNG image for an `img` element."""

    source: str  # a data: URI
    width: int  # in the page, pixels
    height: int
    what: str  # such as "4 frames of 84 × 84"


def frames_of(array: Array) -> Array | None:
    """The frames of an image or a stack of images, as uint8 ``[frames, height, width]`` or ``[…, 3]``; None: no image.

    These are images, with sides of 8 to 4,096 pixels: uint8 ``[height, width]``, ``[height, width, 1 or 3]`` and
    ``[1 or 3, height, width]``. A further axis of any other size holds frames, before the image or, up to 16 frames,
    behind it: so do four channels, as agents stack frames more often than they see transparency.
    """
    if array.dtype != np.uint8 or not 2 <= array.ndim <= 5 or not array.size:
        return None
    if array.ndim == 2:
        return array[None] if _are_sides(*array.shape) else None
    if array.ndim == 3:
        first, second, last = array.shape
        if _are_sides(first, second) and last <= MOST_CHANNELS:
            return array[None] if last == 3 else np.moveaxis(array, -1, 0)
        if not _are_sides(second, last):
            return None
        return np.moveaxis(array, 0, -1)[None] if first == 3 else array
    frames = [found for each in array if (found := frames_of(each)) is not None]
    return np.concatenate(frames) if frames else None


def picture(array: Array, most_side: int, most_frames: int) -> Picture | None:
    """The array as an image, of several frames as a film strip; None: it is no image.

    Args:
        array: an array of any type and shape.
        most_frames: frames in a strip; of more, it shows some at even distances.
        most_side: pixels of a frame's longer side; of larger frames, it shows every second pixel, every third, ….
    """
    from PIL import Image

    frames = frames_of(array)
    if frames is None:
        return None
    count, height, width = frames.shape[:3]
    shown = frames[np.linspace(0, count - 1, min(count, most_frames)).astype(int)]
    step = -(-max(height, width) // most_side)
    strip = _strip(shown[:, ::step, ::step])
    file = io.BytesIO()
    Image.fromarray(strip).save(file, "PNG", compress_level=1)
    times = max(1, min(_MOST_TIMES, most_side // max(height, width)))
    what = f"{width} × {height}" if count == 1 else f"{count:,} frames of {width} × {height}"
    if len(shown) < count:
        what += f", {len(shown)} of them shown"
    source = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return Picture(source, strip.shape[1] * times, strip.shape[0] * times, what)


def _strip(frames: Array) -> Array:
    """Frames side by side."""
    count, height, width, *colours = frames.shape
    strip = np.full((height, count * (width + _GAP) - _GAP, *colours), _GAP_LEVEL, np.uint8)
    for at, frame in enumerate(frames):
        strip[:, at * (width + _GAP) : at * (width + _GAP) + width] = frame
    return strip


def _are_sides(height: int, width: int) -> bool:
    return min(height, width) >= _LEAST_SIDE and max(height, width) <= _MOST_SIDE
