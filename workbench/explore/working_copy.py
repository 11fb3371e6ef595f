"""A working copy of the notebooks: opening and running them leaves the repository as it is."""

import filecmp
import shutil
from itertools import count
from pathlib import Path

__all__ = ["refresh"]

ORIGINALS = ".originals"  # in the working copy: every file as it was copied last
CHECKPOINTS = ".ipynb_checkpoints"  # JupyterLab's own
SOLUTIONS = "solutions.py"  # of a lesson's exercises: not beside it


def refresh(source: Path, copy: Path) -> list[Path]:
    """Copy what is new in `source`, without solutions; what its reader has changed is kept beside it, and returned."""
    kept, left_out = [], {CHECKPOINTS, SOLUTIONS}
    for file in sorted(file for file in source.rglob("*") if file.is_file() and not left_out & set(file.parts)):
        place = copy / file.relative_to(source)
        original = copy / ORIGINALS / file.relative_to(source)
        if place.exists() and _are_equal(file, original):
            continue  # nothing new: the reader's file stays
        if place.exists() and not _are_equal(place, original):
            names = (place.with_suffix(f".yours{number}{place.suffix}") for number in count(1))
            kept.append(place.rename(next(name for name in names if not name.exists())))
        for target in (place, original):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    return kept


def _are_equal(file: Path, other: Path) -> bool:
    return other.exists() and filecmp.cmp(file, other, shallow=False)
