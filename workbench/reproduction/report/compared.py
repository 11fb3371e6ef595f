"""Two sets of records compared, as lines and as the view of a page."""

from __future__ import annotations

from workbench.reproduction.differing import Compared, Difference

from .claims import spread_text
from .texts import View, relative_text, value_text

__all__ = ["compared_view", "difference_texts"]


def compared_view(compared: Compared, before: str, after: str) -> View:
    """Return what a page shows of each item: verdicts and numbers that are told apart, and the number of the rest."""
    items = []
    for name, differences in compared.differences.items():
        shown = [difference_texts(row) for row in differences if row.told_apart and row.what in ("verdict", "value")]
        if differences:
            items.append(View(name=name, rows=shown, left=len(differences) - len(shown)))
    return View(
        before=before,
        after=after,
        items=items,
        number=len(compared.differences),
        alike=sum(not differences for differences in compared.differences.values()),
        verdicts=compared.count("verdict"),
        values=compared.count("value"),
        lacking=compared.lacking,
    )


def difference_texts(difference: Difference) -> tuple[str, str, str, str]:
    """Write a difference: its name, both sides, and the change of a value in per cent."""
    before, after = difference.before, difference.after
    if difference.what != "value":
        sides = ["absent" if side is None else str(side) for side in (before, after)]
        return f"{difference.what} {difference.name}", sides[0], sides[1], ""
    texts = [
        value_text(side["value"], side["unit"]) + spread_text(side) if side else "absent" for side in (before, after)
    ]
    change = relative_text(after["value"], before["value"]) if before and after else ""
    return difference.name, texts[0], texts[1], change
