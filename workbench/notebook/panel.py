"""What a cell on ranks shows: while it runs, buttons and a tab a rank; when it has ended, plain HTML and text.

A saved notebook holds no widget, so it reads the same without a kernel, in papermill's output and on a web page.
"""

import contextlib
import html
import io
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from IPython.display import display

from workbench.notebook.cell_ranks import Wish

__all__ = ["Panel", "show"]

KEPT_CHARACTERS = 100_000  # of a rank's output; earlier ones are left out
LEFT_OUT = "… earlier output is left out …\n"
PREFIX = re.compile(r"\[rank (\d+)\] ")  # how launch marks a line of a rank
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
OVERWRITTEN = re.compile(r"[^\n]*\r(?=[^\r\n])")  # what a progress bar has drawn before
BOX = "margin: 0; white-space: pre-wrap; overflow-wrap: anywhere"
SCROLLS = "max-height: 24em; overflow: auto; display: flex; flex-direction: column-reverse"  # from its end
TABS = """
.workbench-ranks { display: flex; flex-wrap: wrap; gap: 0 0.3em }
.workbench-ranks input { position: absolute; opacity: 0 }
.workbench-ranks label { padding: 0.1em 0.8em; border-bottom: 2px solid transparent; cursor: pointer }
.workbench-ranks input:checked + label { border-color: #2f6fb0; font-weight: 600 }
.workbench-ranks input:focus-visible + label { outline: 2px solid #2f6fb0 }
.workbench-ranks pre { order: 1; width: 100%; display: none }
.workbench-ranks input:checked + label + pre { display: block }
"""


def show(html_text: str, text: str, handle: Any = None) -> Any:
    """Show HTML, and text where that cannot be shown; with a handle, in the place of what it showed."""
    bundle = {"text/html": html_text, "text/plain": text}
    return display(bundle, raw=True, display_id=True) if handle is None else handle.update(bundle, raw=True)


class Panel:
    """The output of one cell by rank; `wish` is called when a button is pressed."""

    def __init__(self, members: Sequence[int], wish: Callable[[Wish], None], *, live: bool):
        self._texts = dict.fromkeys(members, "")
        self._live = live
        self._widgets: list[Any] = []
        self._boxes: dict[int, Any] = {}
        self._drawn: dict[int, str] = {}
        if live:
            self._handle = display(self._open(wish), raw=True, display_id=True)
            for widget in self._widgets:  # ipykernel 7.4 answers where a widget spoke last: in the cell, which is busy
                vars(widget.comm).pop("_reply_subshell_id", None)

    def _open(self, wish: Callable[[Wish], None]) -> dict[str, Any]:
        """Build the buttons and the tabs."""
        import ipywidgets

        buttons = []
        for request, icon in ((Wish.INTERRUPT, "stop"), (Wish.RESTART, "refresh")):
            button = ipywidgets.Button(description=request.name.capitalize(), icon=icon, tooltip=TIPS[request])
            button.on_click(lambda _, request=request: wish(request))
            button.add_class(f"workbench-{request.name.lower()}")
            buttons.append(button)
        self._boxes = {rank: ipywidgets.HTML() for rank in self._texts}
        tabs = ipywidgets.Tab([*self._boxes.values()], titles=[f"rank {rank}" for rank in self._texts])
        whole = ipywidgets.VBox([ipywidgets.HBox(buttons), tabs])
        whole.add_class("workbench-live")
        self._widgets = [*buttons, *self._boxes.values(), tabs, whole.children[0], whole]
        return {**whole._repr_mimebundle_(), "text/plain": f"{len(self._texts)} ranks at work"}

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Take what ranks write, instead of the cell."""
        if not self._live:
            yield
            return
        with (
            contextlib.redirect_stdout(_Router(self, sys.stdout)),
            contextlib.redirect_stderr(_Router(self, sys.stderr)),
        ):
            yield

    def take(self, rank: int, text: str) -> None:
        """Add output of a rank."""
        text = self._texts[rank] + COLOURS.sub("", text)
        text = OVERWRITTEN.sub("", text) if "\r" in text else text
        self._texts[rank] = text if len(text) <= KEPT_CHARACTERS else LEFT_OUT + text[-KEPT_CHARACTERS:]

    def text(self, rank: int) -> str:
        """Return what a rank has written."""
        return self._texts.get(rank, "")

    def redraw(self) -> None:
        """Show output that has arrived."""
        for rank, box in self._boxes.items():
            text = self._texts[rank]
            if self._drawn.get(rank) != text:
                self._drawn[rank] = text
                box.value = f'<div style="{SCROLLS}"><pre style="{BOX}">{html.escape(text)}</pre></div>'

    def close(self, shown: dict[int, str], headline: str) -> None:
        """Put plain output in the place of the widgets: what each rank wrote and its value."""
        for rank, value in shown.items():
            if value:
                self.take(rank, f"{value}\n")
        lines = [f"[rank {rank}] {line}" for rank, text in self._texts.items() for line in text.splitlines()]
        if self._live:
            show(self._tabs(headline), "\n".join([*lines, headline]), self._handle)
        elif lines:
            print("\n".join(lines))
        for widget in self._widgets:
            widget.close()

    def _tabs(self, headline: str) -> str:
        """Return tabs that need no script; without a style they are headings and their texts."""
        name, parts = f"ranks-{uuid.uuid4().hex[:8]}", []
        for number, (rank, text) in enumerate(self._texts.items()):
            checked = "" if number else " checked"
            parts.append(
                f'<input type="radio" name="{name}" id="{name}-{rank}"{checked}>'
                f'<label for="{name}-{rank}">rank {rank}</label><pre style="{BOX}">{html.escape(text)}</pre>'
            )
        tabs = "".join(parts) if any(self._texts.values()) else ""
        return f'<style>{TABS}</style><div class="workbench-ranks">{tabs}</div><small>{html.escape(headline)}</small>'


TIPS = {
    Wish.INTERRUPT: "Stop the cell on all ranks; they keep their names. The kernel's own Interrupt does the same.",
    Wish.RESTART: "End the ranks; the next cell starts new ones, without names.",
}


class _Router(io.TextIOBase):
    """Stands for a standard stream: gives what a rank wrote to the panel, and the rest to the stream."""

    def __init__(self, panel: Panel, stream: Any):
        self._panel, self._stream = panel, stream

    def write(self, text: str) -> int:
        """Write whole lines of one rank, each with its prefix, or anything else."""
        prefix = PREFIX.match(text)
        if prefix is None or int(prefix[1]) not in self._panel._texts:
            return self._stream.write(text)
        self._panel.take(int(prefix[1]), re.sub(rf"(?:^|(?<=[\r\n])){re.escape(prefix[0])}", "", text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()
