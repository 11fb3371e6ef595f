"""What a computed number hangs on: a bar an input, and what the input would have to be for the paper's number."""

from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure

from .style import figure
from .tables import rows_of

__all__ = ["draw_sensitivity"]


def draw_sensitivity(rows: Iterable[Mapping], panel: str = "model") -> Figure:
    """Draw rows of `study.sensitivity.sensitivity_rows`, a panel for each value of a column."""
    rows = list(rows)
    names = list(dict.fromkeys(row[panel] for row in rows))
    drawn, axes = figure(1, len(names), figsize=(4.2 * len(names), 2.6), squeeze=False, sharey=True)
    for ax, name in zip(axes[0], names, strict=True):
        effects = rows_of(rows, "elasticity", **{panel: name}).set_index("input")["value"][::-1]
        needed = rows_of(rows, "needed_over_ours", **{panel: name})
        factors = dict(zip(needed.get("input", ()), needed.get("value", ()), strict=True))
        ours, wanted = (rows_of(rows, quantity, **{panel: name})["value"].item() for quantity in ("ours", "wanted"))
        ax.barh(effects.index, effects.to_numpy())
        for place, (key, effect) in enumerate(effects.items()):  # beside the bar, on the other side of zero
            side, align = (6, "left") if effect < 0 else (-6, "right")
            text = f"needs × {factors[key]:.2g}" if key in factors else ""
            ax.annotate(text, (0, place), (side, 0), textcoords="offset points", ha=align, va="center", size="small")
        ax.axvline(0, color="black", linewidth=0.8)
        ax.margins(x=0.35)
        ax.set(title=f"{name}: {ours:.2f} here, {wanted:.2f} in the paper", xlabel="% for 1 % more of the input")
    return drawn
