"""Pictures inside a page, which then needs no other file: figures as data addresses, formulas as SVG paths.

matplotlib's mathtext sets the TeX of a formula; TeX that it does not know stays as text.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from html import escape
from io import BytesIO
from pathlib import Path

from workbench.reproduction.schema import read_bytes

__all__ = ["figure_uri", "formula_html", "thumbnail_uri"]

THUMBNAIL_PIXELS = (360, 240)  # twice the size on the page, for dense screens
COLOURS = 64  # colours of a thumbnail, a third of the bytes of full colour
KEPT = 256  # figures remembered while a run updates the report item by item
SIZE = 100  # units of an em in the drawing, which leaves two digits to its coordinates
# TeX that mathtext spells otherwise.
SPELLINGS = ((r"\\ge(?![a-zA-Z])", r"\\geq"), (r"\\le(?![a-zA-Z])", r"\\leq"), (r"\\[bB]igg?[lr]?(?=[()\[\]|])", ""))
COMMANDS = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}  # codes of matplotlib's paths, SVG's letters


def figure_uri(path: Path) -> str:
    """Return a figure's file as a data address, or "" where there is none."""
    if not _is_png(path):
        return ""
    state = path.stat()
    return _encoded(path, state.st_mtime_ns, state.st_size)


def thumbnail_uri(path: Path, kept: Path) -> str:
    """Return a small picture of a figure as a data address, kept in a file from one update to the next; or ""."""
    if not _is_png(path):
        return ""
    changed_ns = path.stat().st_mtime_ns
    if not _is_png(kept) or kept.stat().st_mtime_ns != changed_ns:
        _shrink(path, kept)
        os.utime(kept, ns=(changed_ns, changed_ns))
    content = read_bytes(kept)
    return _data_address(content) if content else ""


def _is_png(path: Path) -> bool:
    return path.suffix == ".png" and path.is_file() and not path.is_symlink()


@lru_cache(maxsize=KEPT)
def _encoded(path: Path, _changed_ns: int, _size_bytes: int) -> str:
    return _data_address(read_bytes(path))


def _shrink(path: Path, kept: Path) -> None:
    from PIL import Image, UnidentifiedImageError

    kept.parent.mkdir(parents=True, exist_ok=True)
    content = BytesIO()
    try:
        with Image.open(path) as picture:
            mode = "RGBA" if picture.has_transparency_data else "RGB"
            small = picture if picture.mode == mode else picture.convert(mode)
            small.thumbnail(THUMBNAIL_PIXELS, reducing_gap=1.0)  # half the time of the default, and no worse to see
            if small.mode == "RGBA":
                small = Image.alpha_composite(Image.new("RGBA", small.size, "white"), small).convert("RGB")
            small.quantize(COLOURS, Image.Quantize.FASTOCTREE).save(content, "PNG")
    except (UnidentifiedImageError, OSError):  # a broken figure is still linked; its own page shows that it is broken
        content = BytesIO()
    kept.write_bytes(content.getvalue())  # if cut short it has not the figure's time, and is drawn again


def _data_address(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"


@lru_cache(maxsize=1024)
def formula_html(tex: str, *, block: bool = False) -> str:
    """Turn a formula without its dollar signs into a drawing that reads itself aloud as TeX, or into code."""
    kind, tex = "math block" if block else "math", " ".join(tex.split())
    try:
        return _drawing(tex, kind)
    except ValueError:  # mathtext does not know this TeX
        return f'<code class="{kind}">{escape(tex)}</code>'


def _drawing(tex: str, kind: str) -> str:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    known = tex
    for pattern, spelling in SPELLINGS:
        known = re.sub(pattern, spelling, known)
    font = FontProperties(size=SIZE)
    scale = SIZE / text_to_path.FONT_SCALE
    width, height, depth = (
        scale * length for length in text_to_path.get_text_width_height_descent(f"${known}$", font, ismath=True)
    )
    vertices, codes = text_to_path.get_text_path(font, f"${known}$", ismath=True)
    path = _path([(scale * x, height - depth - scale * y) for x, y in vertices], codes)
    style = f"width:{width / SIZE:.3f}em;height:{height / SIZE:.3f}em;vertical-align:{-depth / SIZE:.3f}em"
    label = f'class="{kind}" role="img" aria-label="{escape(tex)}"'
    box = f'viewBox="0 0 {width:.0f} {height:.0f}" style="{style}"'
    return f'<svg {label} {box}><path fill="currentColor" d="{path}"/></svg>'


def _path(points: list[tuple[float, float]], codes: Iterable[int]) -> str:
    """Write matplotlib's points and codes as SVG's path; a curve has its code at each of its points."""
    words, open_curve = [], 0
    for (x, y), code in zip(points, codes, strict=True):
        letter = COMMANDS[int(code)]
        if letter == "Z":
            words.append("Z")
            continue
        words.append(f"{'' if open_curve else letter}{x:.0f} {y:.0f}")
        open_curve = open_curve - 1 if open_curve else {"Q": 1, "C": 2}.get(letter, 0)
    return " ".join(words)
