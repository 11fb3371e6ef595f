"""Imported by the warm process of kernels: imports the library's modules that WORKBENCH_IMPORTS names.

One that cannot be imported is left to the notebooks that need it.
"""

import contextlib
import importlib
import os

__all__ = ["IMPORTS_VARIABLE"]

IMPORTS_VARIABLE = "WORKBENCH_IMPORTS"  # names of modules, with spaces between them

for _name in os.environ.get(IMPORTS_VARIABLE, "").split():
    with contextlib.suppress(Exception):
        importlib.import_module(_name)
