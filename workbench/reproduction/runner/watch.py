"""How far a running item is: what its study says, else how many cells of its notebook have been executed."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from workbench.rows.progress import HowFar, read_progress

__all__ = ["Watch"]


@dataclass(slots=True)
class Watch:
    """Looks at the files of one run, about once a second."""

    progress: Path  # what its study says
    notebook: Path  # as papermill writes it after each cell
    _first: tuple[float, HowFar] | None = None  # when the study was first seen, on the monotonic clock, and how far
    _last: HowFar | None = None  # what the study said last
    _executed: tuple[int, HowFar | None] = (0, None)  # time stamp of the notebook, and its executed cells

    def look(self, expected_s: float) -> HowFar | None:
        """Return how far the run is, with the seconds to go, of which `expected_s` were expected."""
        far = read_progress(self.progress)
        if far is None or far.num_done >= far.num_parts:
            far = self._executed_cells()
            return far and replace(far, remaining_s=expected_s or None)
        if far.remaining_s is not None:
            return far
        return replace(far, remaining_s=max(expected_s, self._left_s(far)) or None)

    def _left_s(self, far: HowFar) -> float:
        """Extrapolate the pace since the study was first seen; a notebook may have several, one after the other."""
        last, self._last = self._last, far
        if (
            self._first is None
            or last is None
            or (far.what, far.num_parts) != (last.what, last.num_parts)
            or far.num_done < last.num_done
        ):
            self._first = monotonic(), far
        began_s, first = self._first
        done = far.num_done - first.num_done
        return (monotonic() - began_s) / done * (far.num_parts - far.num_done) if done else 0.0

    def _executed_cells(self) -> HowFar | None:
        try:
            changed_ns = self.notebook.stat().st_mtime_ns
            if changed_ns != self._executed[0]:
                cells = json.loads(self.notebook.read_text(encoding="utf-8"))["cells"]
                code = [cell["metadata"].get("papermill", {}) for cell in cells if cell["cell_type"] == "code"]
                states = [run.get("status", "") for run in code]
                far = HowFar(num_done=states.count("completed"), num_parts=len(states), what="notebook cells")
                self._executed = changed_ns, far
        except (OSError, ValueError, KeyError):  # not there yet, or half written
            pass
        return self._executed[1]
