"""Controls of an explorer: what can be chosen, what is chosen at first, and help in words.

Every control offers a finite list of values, so that results can be cached and an
explorer can be walked through by a test or by the keyboard alone.

Source: ipywidgets, whose Dropdown and SelectionSlider answer to Tab and the arrow keys.
Simplified: no free input of numbers.
Left out: controls that depend on each other.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import ipywidgets

__all__ = ["Control", "choice", "steps"]

_LABEL_STYLE = MappingProxyType({"description_width": "6em"})
_WIDTH = "26em"


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """One thing a reader can change."""

    label: str  #: written in front of it
    options: tuple[tuple[str, object], ...]  #: what is shown, and the value it stands for
    value: object  #: chosen at first
    help: str  #: one sentence: what it changes
    is_slider: bool  #: a slider over ordered values, else a list to choose from

    def __post_init__(self) -> None:
        if not self.help:
            raise ValueError(f"help of {self.label!r} is empty; it must say what the control changes")
        if self.value not in [value for _, value in self.options]:
            raise ValueError(f"value of {self.label!r} is {self.value!r}; it must be one of {self.options!r}")

    def widget(self) -> ipywidgets.Widget:
        """Build the widget, which works with the mouse and the keyboard."""
        layout = ipywidgets.Layout(width=_WIDTH, max_width="100%")
        common = {
            "options": self.options,
            "value": self.value,
            "description": self.label,
            "tooltip": self.help,
            "style": dict(_LABEL_STYLE),
            "layout": layout,
        }
        if self.is_slider:
            return ipywidgets.SelectionSlider(continuous_update=False, **common)
        return ipywidgets.Dropdown(**common)


def choice(label: str, options: Mapping[str, object] | Iterable[str], *, value: object, help: str) -> Control:
    """Return a control that chooses one of several unordered values.

    Args:
        label: written in front of it.
        options: texts and the values they stand for, or plain texts.
        value: chosen at first.
        help: one sentence: what it changes.
    """
    pairs = options.items() if isinstance(options, Mapping) else ((text, text) for text in options)
    return Control(label=label, options=tuple(pairs), value=value, help=help, is_slider=False)


def steps(label: str, values: Iterable, *, value: object, help: str, text: Callable[[object], str] = str) -> Control:
    """Return a slider over ordered values.

    Args:
        label: written in front of it.
        values: from left to right.
        value: chosen at first.
        help: one sentence: what it changes.
        text: how a value is written, with its unit.
    """
    return Control(
        label=label, options=tuple((text(each), each) for each in values), value=value, help=help, is_slider=True
    )
