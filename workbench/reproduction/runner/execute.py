"""Running one item's notebook with papermill in a folder of its own.

Source: papermill; the notebook's last cell calls `record`, which leaves its recording in the same folder.
Simplified: papermill runs in a thread of the runner, since importing it for each item would cost more than a second;
all that can hang or die is in the kernel's processes.
Left out: moving the finished folder into place, see `workbench.reproduction.runner.placing`.
"""

import json
import re
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from workbench.reproduction.declare import Reproduction
from workbench.reproduction.project import ROOT_VARIABLE, Project
from workbench.reproduction.recording import KEEP_CELLS, RECORDING_FILE, RUN_DIR, RUN_ITEM, RUN_PROFILE
from workbench.reproduction.runner.kernel import KernelProcess, tethered_kernel_manager

__all__ = ["LOG_FILE", "NOTEBOOK_FILE", "Execution", "Failure"]

NOTEBOOK_FILE = "notebook.ipynb"
LOG_FILE = "log.txt"
CONNECTION_FILE = ".kernel.json"
START_PATIENCE_S = 60  # seconds a kernel may take to answer, generous for a cold disk
LOG_TOLD = 2000  # characters of the log's end that a failure repeats
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why an item failed."""

    reason: str  # in one line
    traceback: str  # as the notebook or the runner saw it

    def __post_init__(self) -> None:
        for name in ("reason", "traceback"):  # a lone surrogate could be neither shown nor written
            object.__setattr__(self, name, getattr(self, name).encode("utf-8", "backslashreplace").decode("utf-8"))

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Return the failure that an exception is; one that a cell raised has the kernel's own traceback."""
        if hasattr(error, "ename"):
            trace = COLOURS.sub("", "\n".join(error.traceback))
            return cls(reason=_reason(error.ename, error.evalue, trace), traceback=trace)
        trace = "".join(traceback.format_exception(error))
        return cls(reason=_reason(type(error).__name__, str(error), trace), traceback=trace)


@dataclass(slots=True)
class Execution:
    """One item being run.

    Attributes:
        project: where the notebook lies.
        item: the item.
        profile: the profile it runs in.
        kernel_name: name of the Jupyter kernel.
        folder: the partial folder it writes into.
        keep_cells: accept cells that are out of date.
        kernel: its kernel's process, to be stopped from outside.
        started: when it began.
        seconds: it took, once it has ended.
    """

    project: Project
    item: Reproduction
    profile: str
    kernel_name: str
    folder: Path
    keep_cells: bool = False
    kernel: KernelProcess = field(default_factory=KernelProcess)
    started: str = ""
    seconds: float = 0.0
    _began: float = 0.0

    def run(self) -> Failure | None:
        """Run the notebook; return why it failed, or None once its recording is there."""
        self.started, self._began = datetime.now(UTC).isoformat(timespec="seconds"), monotonic()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / LOG_FILE).open("a", encoding="utf-8", buffering=1) as log:
                self._execute(log)
            self._recording()
        except Exception as error:  # whatever it is, it is this item's failure and nobody else's
            return self._failure(error)
        finally:
            self.seconds = monotonic() - self._began
            (self.folder / CONNECTION_FILE).unlink(missing_ok=True)
        return None

    def seconds_so_far(self) -> float:
        """Return the seconds since it began."""
        return monotonic() - self._began if self._began else 0.0

    def _execute(self, log: Any) -> None:
        import papermill

        environment = {
            RUN_DIR: str(self.folder),
            RUN_ITEM: self.item.id,
            RUN_PROFILE: self.profile,
            ROOT_VARIABLE: str(self.project.root),
            KEEP_CELLS: "1" if self.keep_cells else "0",
        }
        source = self.project.notebook(self.item)
        papermill.execute_notebook(
            _no_format(source),
            _no_format(self.folder / NOTEBOOK_FILE),
            parameters={"item": self.item.id, **self.item.parameters[self.profile]},
            kernel_name=self.kernel_name,
            progress_bar=False,
            start_timeout=START_PATIENCE_S,
            stdout_file=log,
            stderr_file=log,
            kernel_manager_class=tethered_kernel_manager(
                self.kernel, environment, source.parent, self.folder / CONNECTION_FILE, log
            ),
        )

    def _recording(self) -> None:
        if not (self.folder / RECORDING_FILE).exists():
            raise LookupError(f"{self.item.notebook} ended without calling record(...)")

    def _failure(self, error: Exception) -> Failure:
        if self.kernel.stopped_because:
            return Failure(reason=self.kernel.stopped_because, traceback=_where(self.folder))
        died = (
            isinstance(error, RuntimeError) and "kernel died" in str(error).lower()
        )  # nbclient's, jupyter_client's words
        if died and not hasattr(error, "ename"):
            return Failure(reason=_told(self.kernel.exit_code), traceback=_where(self.folder))
        return Failure.of(error)


def _reason(name: str, text: str, trace: str) -> str:
    """Say an exception in one line; where its text is lost or empty, the last line of its traceback has what there is."""
    if text.strip():
        return f"{name}: {text.strip().splitlines()[0]}"
    last = next((line.strip() for line in reversed(trace.splitlines()) if line.strip()), name)
    return last.rstrip(":") if name in last else f"{name}: {last}"


def _no_format(path: Path) -> str:
    return str(path).replace("{", "{{").replace("}", "}}")  # papermill formats its paths with the parameters


def _told(exit_code: int | None) -> str:
    number = 0 if exit_code is None else -exit_code if exit_code < 0 else exit_code - 128 if exit_code > 128 else 0
    if number == 9:
        return "the kernel was killed by signal 9, likely out of memory or from outside"
    return (
        f"the kernel was killed by signal {number}" if number else f"the kernel ended by itself (exit code {exit_code})"
    )


def _where(folder: Path) -> str:
    """Return the cell that was running and the end of the log."""
    try:
        cells = json.loads((folder / NOTEBOOK_FILE).read_text(encoding="utf-8"))["cells"]
        log = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, KeyError):
        return "it had not begun its first cell"
    begun = [cell for cell in cells if cell.get("metadata", {}).get("papermill", {}).get("start_time")]
    source = "".join(begun[-1]["source"]) if begun else "none yet"
    return f"The last cell it began:\n{source}\n\nEnd of the log:\n{log[-LOG_TOLD:]}"
