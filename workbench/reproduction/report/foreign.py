"""The HTML of an executed notebook, without anything that runs, fetches or leads a reader elsewhere.

bleach keeps listed elements, attributes and styles, and the text of all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html import unescape
from typing import TYPE_CHECKING, Any

from .pictures import formula_html

if TYPE_CHECKING:
    from bleach.sanitizer import Cleaner

__all__ = ["FORMULA", "harmless_html"]

FORMULA = '<code class="{}">{}</code>'  # of a formula, with class and TeX; replaced after cleaning
FORMULAS = re.compile(FORMULA.format("(math|math block)", "([^<]*)"))
KEPT = """a abbr b blockquote br caption code dd del details div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 hr i img
 kbd li mark ol p pre q s samp small span strong sub summary sup table tbody td tfoot th thead tr tt u ul var"""
EMPTIED = """applet embed iframe math noembed noframes noscript object script select style svg template textarea title
 xmp"""  # removed with their text
ADDRESS = re.compile(r"https?:|mailto:|(?![a-z][a-z0-9+.-]*:|[/\\]{2}|\\)", re.IGNORECASE)  # the last: local ones
PICTURE = re.compile(r"data:image/(png|jpeg|gif|svg\+xml);base64,[A-Za-z0-9+/=\s]*")  # an image runs no script
BOX = [f"{name}{side}" for name in ("margin", "padding") for side in ("", "-top", "-bottom", "-left", "-right")]
STYLES = {*BOX, "border", "border-bottom", "border-collapse", "border-top", "max-width", "min-width", "opacity"}
STYLER = re.compile(r"(\s*(#T_\w+|\.dataframe)( +[\w.:-]+)*\s*,?)+")  # selectors in the style sheets of pandas' tables


def harmless_html(body: str) -> str:
    """Return the HTML without scripts, handlers, frames, forms, redirections and foreign addresses."""
    clean = _cleaner().clean(body)
    return FORMULAS.sub(lambda match: formula_html(unescape(match[2]), block=match[1] == "math block"), clean)


@cache
def _cleaner() -> Cleaner:
    from bleach.css_sanitizer import ALLOWED_CSS_PROPERTIES, CSSSanitizer
    from bleach.html5lib_shim import Filter
    from bleach.sanitizer import Cleaner

    emptied = set(EMPTIED.split())
    styles = CSSSanitizer(allowed_css_properties=STYLES | ALLOWED_CSS_PROPERTIES)

    class Emptied(Filter):
        """Drops elements without readable text, except the styles of tables."""

        def __iter__(self) -> Iterator[dict[str, Any]]:
            within: list[str] = []
            text: list[str] = []
            for token in super().__iter__():
                kind, name = token["type"], token.get("name")
                if kind == "StartTag" and name in emptied:
                    within.append(name)
                elif kind == "EmptyTag" and name in emptied:
                    continue
                elif kind == "EndTag" and name in emptied:
                    if within.pop() == "style" and not within and (css := _table_styles("".join(text), styles)):
                        yield {"type": "StartTag", "name": "style", "namespace": token["namespace"], "data": {}}
                        yield {"type": "Characters", "data": css}
                        yield token
                    text.clear()
                elif not within:
                    yield token
                elif kind in ("Characters", "SpaceCharacters"):
                    text.append(token["data"])

    return Cleaner(
        tags={*KEPT.split(), *emptied},
        attributes=_is_allowed,
        protocols={"http", "https", "mailto", "data"},
        strip=True,
        filters=[Emptied],
        css_sanitizer=styles,
    )


def _is_allowed(tag: str, name: str, value: str) -> bool:
    if name in ("class", "id", "style", "title", "role", "aria-label"):
        return True
    if tag == "a":
        return name == "href" and bool(ADDRESS.match(value.strip()))
    if tag == "img":
        return name in ("alt", "width", "height") or (name == "src" and bool(PICTURE.fullmatch(value)))
    return tag in ("td", "th") and name in ("colspan", "rowspan", "scope")


def _table_styles(css: str, styles: Any) -> str:
    """Return the part of a style sheet that pandas' Styler writes for the cells of one table."""
    from tinycss2 import parse_stylesheet, serialize

    kept = []
    for rule in parse_stylesheet(css, skip_comments=True, skip_whitespace=True):
        if rule.type == "qualified-rule" and STYLER.fullmatch(serialize(rule.prelude)):
            kept.append(f"{serialize(rule.prelude)}{{{styles.sanitize_css(serialize(rule.content))}}}")
    text = "\n".join(kept)
    return "" if "<" in text else text
