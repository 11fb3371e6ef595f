"""The progress of a long call: a small file that `workbench reproduce` reads while it waits.

It touches no number, so calls of `say_progress` and their import are no part of an item's fingerprint.
"""

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import SupportsFloat

__all__ = ["PROGRESS_VARIABLE", "HowFar", "read_progress", "say_progress"]

PROGRESS_VARIABLE = "WORKBENCH_PROGRESS"  # path of the file; unset where nobody waits
LEAST_BETWEEN_S = 0.5  # seconds between two writes; the reader looks once a second


@dataclass(frozen=True, kw_only=True, slots=True)
class HowFar:
    """The number of finished parts of a call."""

    num_done: int
    num_parts: int  # in all
    what: str  # the parts' name, such as "cells" or "turns"
    remaining_s: float | None = None  # estimate of the seconds to go; None while nobody knows
    loss: float | None = None  # loss of the last step; None if there is none


def say_progress(
    num_done: int,
    num_parts: int,
    what: str,
    remaining_s: float | None = None,
    *,
    loss: SupportsFloat | None = None,
    rank: int = 0,
) -> None:
    """Write the progress of a call, at most twice a second; among several ranks only the given rank writes."""
    path = os.environ.get(PROGRESS_VARIABLE)
    dist = sys.modules.get("torch.distributed")
    if not path or (dist is not None and dist.is_initialized() and dist.get_rank() != rank):
        return
    with suppress(OSError):  # without a file only the bar stands still
        if num_done < num_parts and os.path.exists(path) and time.time() - os.stat(path).st_mtime < LEAST_BETWEEN_S:
            return
        loss = None if loss is None else float(loss)
        far = HowFar(num_done=num_done, num_parts=num_parts, what=what, remaining_s=remaining_s, loss=loss)
        Path(f"{path}.new").write_text(json.dumps(asdict(far)), encoding="utf-8")
        os.replace(f"{path}.new", path)


def read_progress(path: Path) -> HowFar | None:
    """Return the last progress; None if there is none."""
    try:
        return HowFar(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
