"""Two sets of records compared, as lines and as the view of a page."""

from __future__ import annotations

from workbench.reproduction.differing import Compared, Difference

from .claims import spread_text
from .texts import View, relative_text, value_text

__all__ = ["compared_view", "difference_texts"]


def compared_view(compared: Compared, before: str, after: str) -> View:
    """Return what a page shows of each item: verdicts and numbers that are told apart, and the number of the rest."""
    items = []
    for name, each in compared.found.items():
        shown = [difference_texts(one) for one in each if one.told_apart and one.what in ("verdict", "value")]
        if each:
            items.append(View(name=name, rows=shown, left=len(each) - len(shown)))
    return View(
        before=before,
        after=after,
        items=items,
        number=len(compared.found),
        alike=sum(not each for each in compared.found.values()),
        verdicts=compared.count("verdict"),
        values=compared.count("value"),
        lacking=compared.lacking,
    )


def difference_texts(one: Difference) -> tuple[str, str, str, str]:
    """Write a difference: its name, both sides, and the change of a value in per cent."""
    if one.what != "value":
        sides = ["absent" if side is None else str(side) for side in (one.before, one.after)]
        return f"{one.what} {one.name}", sides[0], sides[1], ""
    texts = [
        value_text(side["value"], side["unit"]) + spread_text(side) if side else "absent"
        for side in (one.before, one.after)
    ]
    change = relative_text(one.after["value"], one.before["value"]) if one.before and one.after else ""
    return one.name, texts[0], texts[1], change
