"""A working copy of the notebooks: opening and running them leaves the repository as it is."""

import filecmp
import shutil
from itertools import count
from pathlib import Path

__all__ = ["refresh"]

ORIGINALS = ".originals"  # in the working copy: every file as it was copied last
CHECKPOINTS = ".ipynb_checkpoints"  # JupyterLab's own


def refresh(source: Path, copy: Path) -> list[Path]:
    """Copy what is new in `source`; a file that its reader has changed is kept beside the new one, and returned."""
    kept = []
    for file in sorted(file for file in source.rglob("*") if file.is_file() and CHECKPOINTS not in file.parts):
        place = copy / file.relative_to(source)
        original = copy / ORIGINALS / file.relative_to(source)
        if place.exists() and _are_equal(file, original):
            continue  # nothing new: the reader's file stays
        if place.exists() and not _are_equal(place, original):
            kept.append(place.rename(_free_name(place)))
        for target in (place, original):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    return kept


def _are_equal(one: Path, other: Path) -> bool:
    return other.exists() and filecmp.cmp(one, other, shallow=False)


def _free_name(place: Path) -> Path:
    names = (place.with_suffix(f".yours{number}{place.suffix}") for number in count(1))
    return next(name for name in names if not name.exists())
