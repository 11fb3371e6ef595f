"""An explorer: controls above a figure; a changed control computes, then draws.

    Explorer(compute, draw, describe=describe, ratio=steps("ratio", ...), method=choice("method", ...))

`compute(ratio=..., method=...)` returns a result and is cached; `draw(result)` returns a
figure. The explorer is complete before any control is touched: it computes and draws as
it is built, and a notebook that is only read later shows that first figure.

Source: none; the pattern of `ipywidgets.interactive`, with a cache, help and a status.
Simplified: the figure is a picture, drawn anew for each change.
Left out: computing in the background; a result that takes longer than a second or two
belongs in a record, and the explorer reads it.
"""

import base64
import html
import io
from collections.abc import Callable
from functools import lru_cache
from typing import Generic, TypeVar

import ipywidgets
from matplotlib import pyplot
from matplotlib.figure import Figure

from workbench.plots import styled

from .controls import Control

__all__ = ["Explorer"]

Result = TypeVar("Result")

_CACHED_RESULTS = 256  # settings whose results are kept
_PNG_DPI = 120


class Explorer(Generic[Result]):
    """Controls, a status line and a figure, shown as the last expression of a cell."""

    def __init__(
        self,
        compute: Callable[..., Result],
        draw: Callable[[Result], Figure],
        *,
        describe: Callable[[Result], str] = lambda result: "figure drawn",
        **controls: Control,
    ) -> None:
        """Build the widgets, compute the first result and draw it.

        Args:
            compute: takes one keyword argument a control; a ValueError is shown to the reader.
            draw: makes a new figure of a result, in the style of all plots; the explorer closes it.
            describe: the result in a sentence, for the status line and for screen readers.
            controls: by the name of compute's argument.

        Raises:
            ValueError: if there is no control, or the first settings are refused by compute.
        """
        if not controls:
            raise ValueError("controls is empty; an explorer must have at least one")
        self._compute, self._draw, self._describe = lru_cache(maxsize=_CACHED_RESULTS)(compute), draw, describe
        self._widgets = {name: control.widget() for name, control in controls.items()}
        self._status = _html_box("workbench-status")
        self._figure = _html_box("workbench-figure")
        self._png = b""
        self._result: Result = self._compute(**self.values)
        self._show()
        rows = [_control_row(name, self._widgets[name], control.help) for name, control in controls.items()]
        self.widget = ipywidgets.VBox([*rows, self._status, self._figure])
        self.widget.add_class("workbench-explorer")
        for each in self._widgets.values():
            each.observe(self._changed, names="value")

    @property
    def values(self) -> dict[str, object]:
        """What the controls stand at."""
        return {name: each.value for name, each in self._widgets.items()}

    @property
    def result(self) -> Result:
        """What `compute` returned for the figure that is shown."""
        return self._result

    @property
    def status(self) -> str:
        """The sentence under the controls."""
        return self._text

    @property
    def png(self) -> bytes:
        """The figure that is shown."""
        return self._png

    def set(self, **values: object) -> "Explorer[Result]":
        """Move controls as a reader would, one after the other.

        Raises:
            ValueError: if there is no such control.
        """
        for name, value in values.items():
            if name not in self._widgets:
                raise ValueError(f"control is {name!r}; it must be one of {list(self._widgets)!r}")
            self._widgets[name].value = value
        return self

    def _changed(self, change: dict) -> None:
        self._say("computing …")
        try:
            self._result = self._compute(**self.values)
            self._show()
        except ValueError as error:
            self._say(f"Not possible: {error}. The figure shows the last possible choice.")
        except Exception as error:
            self._say(f"Failed: {type(error).__name__}: {error}")
            raise

    def _show(self) -> None:
        with styled():
            self._png = _png(self._draw(self._result))
        description = self._describe(self._result)
        picture = base64.b64encode(self._png).decode()
        self._figure.value = (
            f'<img alt="{html.escape(description)}" style="max-width: 100%" src="data:image/png;base64,{picture}">'
        )
        self._say(description)

    def _say(self, text: str) -> None:
        self._text = text
        self._status.value = f'<div role="status" aria-live="polite">{html.escape(text)}</div>'

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict:
        """Show the widgets; where they cannot be shown, the figure."""
        bundle = self.widget._repr_mimebundle_() or {}
        return {**bundle, "image/png": base64.b64encode(self._png).decode(), "text/plain": self._text}


def _html_box(dom_class: str) -> ipywidgets.HTML:
    box = ipywidgets.HTML(layout=ipywidgets.Layout(max_width="100%"))
    box.add_class(dom_class)
    return box


def _control_row(name: str, widget: ipywidgets.Widget, help: str) -> ipywidgets.Box:
    widget.add_class(f"workbench-control-{name.replace('_', '-')}")
    layout = ipywidgets.Layout(flex="1 1 20em", margin="0 0 0 0.5em")
    text = ipywidgets.HTML(f"<small>{html.escape(help)}</small>", layout=layout)
    return ipywidgets.Box([widget, text], layout=ipywidgets.Layout(flex_flow="row wrap", align_items="center"))


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_PNG_DPI)
    pyplot.close(figure)
    return buffer.getvalue()
