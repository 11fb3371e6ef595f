"""Formulas of a notebook as drawings inside the page, which need neither a script nor a font of the reader's.

Source: matplotlib's mathtext sets the TeX; its outlines become one SVG path in the colour of the text.
Simplified: what mathtext does not know (such as a brace below a sum) stays as TeX, marked as a formula.
Left out: MathML, numbered equations.
"""

from __future__ import annotations

import re
from functools import lru_cache
from html import escape

__all__ = ["formula_html"]

SIZE = 100  # units of an em in the drawing, which leaves two digits to its coordinates
SPELLINGS = (
    (r"\\ge(?![a-zA-Z])", r"\\geq"),
    (r"\\le(?![a-zA-Z])", r"\\leq"),
    (r"\\[bB]igg?[lr]?(?=[()\[\]|])", ""),
)  # TeX, mathtext's
COMMANDS = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}  # codes of matplotlib's paths, SVG's letters


@lru_cache(maxsize=1024)
def formula_html(tex: str, *, block: bool = False) -> str:
    r"""Turn a formula into HTML.

    Args:
        tex: the formula without its dollar signs, such as r"\frac{a}{b}".
        block: whether it stands on a line of its own.

    Returns:
        A drawing that reads itself aloud as TeX, or the TeX as code where it cannot be drawn.
    """
    kind, tex = "math block" if block else "math", " ".join(tex.split())
    try:
        return _drawing(tex, kind)
    except ValueError:  # what mathtext raises for TeX that it does not know
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
    return (
        f'<svg class="{kind}" role="img" aria-label="{escape(tex)}" viewBox="0 0 {width:.0f} {height:.0f}" style="{style}">'
        f'<path fill="currentColor" d="{path}"/></svg>'
    )


def _path(points: list[tuple[float, float]], codes: list[int]) -> str:
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
