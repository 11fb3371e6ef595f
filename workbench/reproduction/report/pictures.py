"""Figures as data addresses, so that a page needs no other file and no network.

Source: RFC 2397 (data URLs).
Simplified: a thumbnail is always PNG; a vector figure is its own thumbnail.
Left out: formats a browser cannot draw.
"""

from __future__ import annotations

import base64
import io
from functools import lru_cache
from pathlib import Path

__all__ = ["figure_uri", "thumbnail_uri"]

MEDIA_TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
THUMBNAIL_PIXELS = (360, 240)  # twice the size on the page, for dense screens
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


def thumbnail_uri(path: Path) -> str:
    """Return a small picture of a figure as a data address, or "" where there is none."""
    if path.suffix.lower() not in MEDIA_TYPES or not path.is_file():
        return ""
    if path.suffix.lower() == ".svg":
        return figure_uri(path)
    state = path.stat()
    return _shrunk(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=KEPT)
def _encoded(path: Path, _changed_ns: int, _size_bytes: int) -> str:
    return _data_address(path.read_bytes(), MEDIA_TYPES[path.suffix.lower()])


@lru_cache(maxsize=KEPT)
def _shrunk(path: Path, _changed_ns: int, _size_bytes: int) -> str:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            picture = picture.convert("RGBA" if "A" in picture.getbands() else "RGB")
            picture.thumbnail(THUMBNAIL_PIXELS)
            held = io.BytesIO()
            picture.save(held, "PNG", optimize=True)
    except UnidentifiedImageError:
        return ""  # a broken figure is still linked; its page says what it is
    return _data_address(held.getvalue(), "image/png")


def _data_address(content: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"
