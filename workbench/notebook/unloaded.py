"""Loaded with every kernel of `workbench lab`: a magic that is not loaded yet says what to do, also after a restart."""

from typing import Any, Never

from IPython.core.error import UsageError

__all__ = ["load_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Put a hint in the place of each magic; `%load_ext workbench` puts the magics in theirs."""
    for name in ("ranks", "rank", "workbench"):
        shell.register_magic_function(_hint, magic_kind="line_cell", magic_name=name)


def _hint(line: str, cell: str | None = None) -> Never:
    raise UsageError("this kernel has not loaded the workbench; run %load_ext workbench first, also after a restart")
