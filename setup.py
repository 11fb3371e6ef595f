"""Puts the catalogue with its records, the notebooks and the small data into a wheel, as workbench/carried."""

import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
copy_root = runpy.run_path(str(ROOT / "workbench" / "checkout.py"))["copy_root"]


class BuildWithCatalogue(build_py):
    """Copies the top-level folders into the wheel; an editable install uses them where they are."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "workbench", "carried")
            shutil.rmtree(target, ignore_errors=True)
            copy_root(ROOT, target)


setup(cmdclass={"build_py": BuildWithCatalogue})
