"""The root that holds reproductions/ and notebooks/: a checkout, a copy of it to edit, or what a wheel carries."""

import os
import shutil
from pathlib import Path

__all__ = ["HOME", "IS_INSTALLED", "RESULTS_VARIABLE", "ROOT_VARIABLE", "find_results", "find_root"]
__all__ += ["copy_root", "place_to_write"]

ROOT_VARIABLE = "WORKBENCH_ROOT"  # environment variable that names another root
RESULTS_VARIABLE = "WORKBENCH_RESULTS"  # environment variable that names another folder for results
FOLDERS = ("reproductions", "notebooks")  # a root has both
COPIED = (*FOLDERS, "data", "docs", "examples", "CITATION.cff")  # what setup.py and `workbench init` copy of a root
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*", "downloads")
PACKAGE = Path(__file__).resolve().parent
CARRIED = PACKAGE / "carried"  # written by setup.py into a wheel
IS_INSTALLED = CARRIED.is_dir()  # from a wheel, so without a checkout
HOME = CARRIED if IS_INSTALLED else PACKAGE.parent  # the root that belongs to this package


def find_root() -> Path:
    """Return the root of WORKBENCH_ROOT, else the nearest at or above the current folder, else the package's own."""
    if named := os.environ.get(ROOT_VARIABLE):
        return Path(named).resolve()
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was deleted
        return HOME
    return next((folder for folder in (here, *here.parents) if all((folder / name).is_dir() for name in FOLDERS)), HOME)


def place_to_write(root: Path) -> Path:
    """Return the root, or the current folder where the root is an installed package, which is not written to."""
    return Path.cwd() if IS_INSTALLED and root == HOME else root


def find_results(root: Path) -> Path:
    """Return the folder that runs write to: that of WORKBENCH_RESULTS, else `results` in the place to write to."""
    return Path(os.environ.get(RESULTS_VARIABLE) or place_to_write(root) / "results").resolve()


def copy_root(root: Path, target: Path) -> None:
    """Copy what a root holds of catalogue, notebooks and data into a folder, without what runs or downloads left."""
    target.mkdir(parents=True, exist_ok=True)
    for source in (root / name for name in COPIED if (root / name).exists()):
        if source.is_dir():
            shutil.copytree(source, target / source.name, ignore=LEFT_OUT)
        else:
            shutil.copy(source, target)
