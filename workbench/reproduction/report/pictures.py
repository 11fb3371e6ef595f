"""Figures as data addresses, so that a page needs no other file and no network.

Source: RFC 2397 (data URLs).
Simplified: a thumbnail is always PNG; a vector figure is its own thumbnail.
Left out: formats a browser cannot draw.
"""

from __future__ import annotations

import base64
import os
from functools import lru_cache
from io import BytesIO
from pathlib import Path

from workbench.reproduction.records import write_whole

__all__ = ["figure_uri", "thumbnail_uri"]

MEDIA_TYPES = {
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
}
THUMBNAIL_PIXELS = (360, 240)  # twice the size on the page, for dense screens
COLOURS = 64  # of a thumbnail, a third of the bytes of full colour
KEPT = 256  # figures remembered while a run updates the report item by item


def figure_uri(path: Path) -> str:
    """Return a figure's file as a data address, or "" where a browser could not show it.

    Args:
        path: the figure.

    Returns:
        "data:image/png;base64,..." or "".
    """
    if path.suffix.lower() not in MEDIA_TYPES or not path.is_file():
        return ""
    state = path.stat()
    return _encoded(path, state.st_mtime_ns, state.st_size)


def thumbnail_uri(path: Path, kept: Path) -> str:
    """Return a small picture of a figure as a data address, or "" where there is none.

    Args:
        path: the figure.
        kept: file that keeps the small picture from one update to the next; it has the figure's time of change.

    Returns:
        "data:image/png;base64,..." or "".
    """
    if path.suffix.lower() not in MEDIA_TYPES or not path.is_file():
        return ""
    if path.suffix.lower() == ".svg":
        return figure_uri(path)
    changed_ns = path.stat().st_mtime_ns
    if not kept.is_file() or kept.stat().st_mtime_ns != changed_ns:
        _shrink(path, kept)
        os.utime(kept, ns=(changed_ns, changed_ns))
    content = kept.read_bytes()
    return _data_address(content, "image/png") if content else ""


@lru_cache(maxsize=KEPT)
def _encoded(path: Path, _changed_ns: int, _size_bytes: int) -> str:
    return _data_address(path.read_bytes(), MEDIA_TYPES[path.suffix.lower()])


def _shrink(path: Path, kept: Path) -> None:
    from PIL import Image, UnidentifiedImageError

    kept.parent.mkdir(parents=True, exist_ok=True)
    content = BytesIO()
    try:
        with Image.open(path) as picture:
            small = picture.convert("RGBA")
            small.thumbnail(THUMBNAIL_PIXELS)
            ground = Image.new("RGBA", small.size, "white")
            Image.alpha_composite(ground, small).convert("RGB").quantize(COLOURS).save(content, "PNG")
    except (UnidentifiedImageError, OSError):  # a broken figure is still linked; its own page shows that it is broken
        content = BytesIO()
    write_whole(kept, content.getvalue())


def _data_address(content: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"
