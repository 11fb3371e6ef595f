"""A progress bar under a cell, with the loss and a Cancel button; a line of text stays after the cell.

Importing `workbench.explore` in a notebook switches it on. `workbench reproduce` shows its own bar instead.
"""

import contextvars
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ipywidgets

from workbench.rows.progress import PROGRESS_VARIABLE, HowFar, read_progress

__all__ = ["CellBar", "show_bars"]

LOOK_S = 0.2  # seconds between two looks at the progress file


class CellBar:
    """The bar of the running cell; IPython calls `begin` and `end`."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="workbench-progress-")
        self.path = Path(self._folder.name, "progress.json")  # file that calls write
        self.begin()

    def begin(self, _: object = None) -> None:
        """Begin to watch the progress of the cell's calls."""
        self.path.unlink(missing_ok=True)
        self._far: HowFar | None = None
        self._shown: Any = None  # the handle of the displayed bar
        self._began_s = time.monotonic()
        self._is_over = threading.Event()
        # In the context of the cell, so that the bar is displayed under it.
        self._thread = threading.Thread(target=contextvars.copy_context().run, args=[self._watch], daemon=True)
        self._thread.start()

    def end(self, result: Any) -> None:
        """Replace the bar by a line of text, since a reopened notebook cannot show widgets."""
        self._is_over.set()
        self._thread.join()
        if self._shown is not None:
            self._shown.update({"text/plain": self._last_words(result.error_in_exec)}, raw=True)
            for widget in (*self._box.children, self._box):
                widget.close()

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_S):
            far = read_progress(self.path)
            if far is not None:
                self._show(far)

    def _show(self, far: HowFar) -> None:
        self._far = far
        if self._shown is None:
            self._display()
        self._bar.value = far.num_done / far.num_parts if far.num_parts else 1.0
        self._label.value = f"{_words(far)} · {time.monotonic() - self._began_s:.0f} s"

    def _display(self) -> None:
        from IPython.display import display

        self._bar, self._label = ipywidgets.FloatProgress(max=1.0), ipywidgets.Label()
        cancel = ipywidgets.Button(
            description="Cancel", tooltip="End the call at once, as interrupting the kernel does."
        )
        main_thread = threading.main_thread().ident
        assert main_thread is not None  # it runs
        cancel.on_click(lambda _: signal.pthread_kill(main_thread, signal.SIGINT))
        self._box = ipywidgets.HBox([self._bar, self._label, cancel])
        self._box.add_class("workbench-progress")
        self._shown = display(self._box, display_id=True)
        # ipykernel 7.4 answers a widget in the busy cell that used it last; without that entry it uses a thread.
        vars(cancel.comm).pop("_reply_subshell_id", None)

    def _last_words(self, error: BaseException | None) -> str:
        far = read_progress(self.path) or self._far
        assert far is not None  # a bar is shown
        words = f"{_words(far)} after {time.monotonic() - self._began_s:.1f} s"
        if isinstance(error, KeyboardInterrupt):
            return f"Cancelled at {words}. The call has ended, and its ranks with it."
        return f"Failed at {words}." if error else f"Done: {words}."


def _words(far: HowFar) -> str:
    of = f" of {far.num_parts}" if far.num_parts else ""
    loss = "" if far.loss is None else f", loss {far.loss:.4g}"
    return f"{far.num_done}{of} {far.what}{loss}"


def show_bars() -> None:
    """Show a bar under each cell of this kernel that reports progress; do nothing elsewhere or if called again."""
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if getattr(shell, "kernel", None) is None or PROGRESS_VARIABLE in os.environ or sys.platform == "emscripten":
        return
    bar = CellBar()
    os.environ[PROGRESS_VARIABLE] = str(bar.path)
    shell.events.register("pre_run_cell", bar.begin)
    shell.events.register("post_run_cell", bar.end)
