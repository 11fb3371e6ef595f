"""A working copy of the notebooks: opening and running them leaves the repository as it is."""

import filecmp
import shutil
from itertools import count
from pathlib import Path

__all__ = ["refresh"]

ORIGINALS = ".originals"  # in the working copy: every file as last copied
CHECKPOINTS = ".ipynb_checkpoints"  # JupyterLab's own


def refresh(source: Path, copy: Path) -> list[Path]:
    """Copy new files of `source`; a file that its reader has changed stays beside the new file, and is returned."""
    kept = []
    for file in sorted(file for file in source.rglob("*") if file.is_file() and CHECKPOINTS not in file.parts):
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


def _are_equal(file: Path, original: Path) -> bool:
    return original.exists() and filecmp.cmp(file, original, shallow=False)
