"""An explorer: controls above a figure; a changed control computes, then draws.

    Explorer(compute, draw, describe=describe, ratio=steps("ratio", ...), method=choice("method", ...))

`compute(ratio=..., method=...)` is cached and returns a result; `draw(result)` returns a figure. The first figure is
drawn before any control is touched, so a notebook that is only read later shows it.
"""

import base64
import html
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import ipywidgets
from matplotlib import pyplot
from matplotlib.figure import Figure

from workbench.plots import styled

__all__ = ["Control", "Explorer", "choice", "steps"]

Result = TypeVar("Result")

_CACHED_RESULTS = 256  # settings whose results are kept
_PNG_DPI = 120
_LETTER_EM = 0.6  # width of a letter
_STYLE = """<style>
.workbench-explorer .widget-readout { flex: none; max-width: none; }
.workbench-explorer small { display: block; line-height: 1.3; }
.workbench-explorer .widget-label { height: auto; overflow: visible; white-space: normal; }
.workbench-links a { text-decoration: underline; }
.workbench-explorer .jupyter-widgets-disconnected::before { display: none; }
.workbench-explorer.jupyter-widgets-disconnected::before {
  content: "Run this cell to move its controls."; color: inherit; font: inherit; font-size: small; }
.workbench-explorer.jupyter-widgets-disconnected :is(.widget-box, .workbench-working) { display: none; }
</style>"""  # ipywidgets cut off long words, and mark each control of a reopened notebook with a broken link
_FORMATS = {"svg": "image/svg+xml", "pdf": "application/pdf"}  # in which a picture can be saved


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """One choice of the reader, among a finite list, so that a test or the keyboard alone can walk through all."""

    label: str  # written in front of it
    options: tuple[tuple[str, object], ...]  # what is shown, and the value it stands for
    value: object  # chosen at first
    help: str  # one sentence: what it changes
    is_slider: bool  # a slider over ordered values, else a list to choose from

    def __post_init__(self) -> None:
        if not self.help:
            raise ValueError(f"help of {self.label!r} is empty; it must say what the control changes")
        if None in (values := [value for _, value in self.options]):
            raise ValueError(
                f"options of {self.label!r} have the value None, which a list shows as blank; give another"
            )
        if self.value not in values:
            raise ValueError(f"value of {self.label!r} is {self.value!r}; it must be one of {self.options!r}")

    def widget(self) -> ipywidgets.Widget:
        """Build the widget, which works with the mouse and the keyboard."""
        if self.is_slider:
            return ipywidgets.SelectionSlider(continuous_update=False, **self.common)
        return ipywidgets.Dropdown(**self.common)

    @property
    def common(self) -> dict:
        """What every widget takes."""
        longest = max(len(text) for text, _ in self.options)
        layout = ipywidgets.Layout(width=f"{max(26, 14 + longest * _LETTER_EM):.0f}em", max_width="100%")
        style = {"description_width": "6em"}
        shown = {"options": self.options, "value": self.value, "description": self.label, "tooltip": self.help}
        return {**shown, "style": style, "layout": layout}


def choice(label: str, options: Mapping[str, object] | Iterable[str], *, value: object, help: str) -> Control:
    """Return a control that chooses one of several unordered values, given by their texts or as plain texts."""
    pairs = options.items() if isinstance(options, Mapping) else ((text, text) for text in options)
    return Control(label=label, options=tuple(pairs), value=value, help=help, is_slider=False)


def steps(label: str, values: Iterable, *, value: object, help: str, text: Callable[[Any], str] = str) -> Control:
    """Return a slider over ordered values; `text` writes a value with its unit."""
    options = tuple((text(option), option) for option in values)
    return Control(label=label, options=options, value=value, help=help, is_slider=True)


class Explorer(Generic[Result]):
    """Controls, a Reset, a status line and a figure, shown as the last expression of a cell."""

    def __init__(
        self,
        compute: Callable[..., Result],
        draw: Callable[[Result], Figure],
        *,
        describe: Callable[[Result], str] = lambda result: "figure drawn",
        effect: Callable[[Result], object] | None = None,
        **controls: Control,
    ) -> None:
        """Build the widgets, compute the first result and draw it.

        Args:
            compute: takes one keyword argument a control; a ValueError is shown to the reader.
            draw: makes a new figure of a result, in the style of all plots; the explorer closes it.
            describe: the result in a sentence, for the status line and for screen readers.
            effect: the part of a result that controls are there to change, such as the times. All controls that change
                nothing of it are named before they are moved, so computing must be quick. None names a control when it
                has been moved and the picture has stayed the same.
            controls: by the name of compute's argument.

        Raises:
            ValueError: if there is no control, or the first settings are refused by compute.
        """
        if not controls:
            raise ValueError("controls is empty; an explorer must have at least one")
        self._compute, self._draw, self._describe = lru_cache(maxsize=_CACHED_RESULTS)(compute), draw, describe
        self._effect, self._controls = effect, controls
        self._widgets = {name: control.widget() for name, control in controls.items()}
        self._first = self.values
        self._shown: Mapping[str, object] = {}
        self._status = _html_box("workbench-status")
        self._figure = _html_box("workbench-figure")
        self._links = _html_box("workbench-links")
        self._png = b""
        self._result: Result = self._compute(**self.values)
        self._show()
        rows = [_control_row(name, self._widgets[name], control.help) for name, control in controls.items()]
        self.widget = ipywidgets.VBox([*rows, self._buttons(), self._status, self._figure])
        self.widget.add_class("workbench-explorer")
        for widget in self._widgets.values():
            widget.observe(self._changed, names="value")

    def _buttons(self) -> ipywidgets.Box:
        tips = {"Reset": "Put all controls back to where they were at first.", "Export": "Save this picture."}
        buttons = [ipywidgets.Button(description=name, tooltip=tip) for name, tip in tips.items()]
        for button, act in zip(buttons, (self.reset, self.export), strict=True):
            button.layout = ipywidgets.Layout(width="6em", flex="none")
            button.add_class(f"workbench-{button.description.lower()}")
            button.on_click(lambda _, act=act: act())
        layout = ipywidgets.Layout(align_items="center")
        return ipywidgets.Box([*buttons, self._links, ipywidgets.HTML(_STYLE)], layout=layout)

    @property
    def values(self) -> dict[str, object]:
        """What the controls stand at."""
        return {name: widget.value for name, widget in self._widgets.items()}

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

    def reset(self) -> None:
        """Put all controls back, and draw once."""
        for name, widget in self._widgets.items():
            widget.unobserve(self._changed, names="value")
            widget.value = self._first[name]
            widget.observe(self._changed, names="value")
        self._changed({})

    def export(self) -> None:
        """Show links under which a browser saves the picture as SVG and as PDF."""
        links = []
        for name, kind in _FORMATS.items():
            with styled():
                data = base64.b64encode(_saved(self._draw(self._result), name)).decode()
            links.append(f'<a download="picture.{name}" href="data:{kind};base64,{data}">{name.upper()}</a>')
        self._links.value = " ".join(links)

    def _changed(self, change: dict) -> None:
        self._say("computing …", "workbench-working")
        self._links.value = ""
        try:
            self._result = self._compute(**self.values)
            self._show()
        except ValueError as error:
            self._say(f"Not possible: {error}. The figure shows the last possible choice.")
        except BaseException as error:  # an interrupt, too: nothing is computed any more
            self._say(f"Failed: {type(error).__name__}: {error}")
            raise

    def _show(self) -> None:
        before, shown, self._shown = self._png, self._shown, self.values
        with styled():
            self._png = _saved(self._draw(self._result), "png")
        description = self._describe(self._result)
        picture = base64.b64encode(self._png).decode()
        self._figure.value = (
            f'<img alt="{html.escape(description)}" style="max-width: 100%" src="data:image/png;base64,{picture}">'
        )
        idle = [self._controls[name].label for name in self._without_effect(before, shown)]
        note = f". No effect at these settings: {', '.join(idle)}."
        self._say(description.rstrip(".") + note if idle else description)

    def _without_effect(self, before: bytes, shown: Mapping[str, object]) -> list[str]:
        """Name the controls that change nothing now; `before` is the last picture, `shown` its settings."""
        if self._effect is None:
            moved = [name for name, value in self.values.items() if shown.get(name) != value]
            return moved if len(moved) == 1 and self._png == before else []
        by_control = {
            name: {self._effect(self._compute(**self.values | {name: value})) for _, value in control.options}
            for name, control in self._controls.items()
        }
        return [name for name, effects in by_control.items() if len(effects) == 1]

    def _say(self, text: str, dom_class: str = "") -> None:
        self._text = text
        self._status.value = f'<div role="status" class="{dom_class}" aria-live="polite">{html.escape(text)}</div>'

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


def _saved(figure: Figure, format: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=format, dpi=_PNG_DPI)
    pyplot.close(figure)
    return buffer.getvalue()
