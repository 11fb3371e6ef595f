"""What `%load_ext workbench` adds to a notebook: cells that run on ranks, and items run and shown in place."""

from typing import Any

__all__ = ["load"]


def load(shell: Any) -> None:
    """Register the magics with an IPython shell."""
    from workbench.notebook.magics import RanksMagics, WorkbenchMagics

    shell.register_magics(RanksMagics, WorkbenchMagics)
