"""A research workbench for distributed deep-learning systems: published techniques on real ranks."""

import importlib

__all__ = ["advise", "load_ipython_extension"]


def __getattr__(name: str) -> object:
    # Lazy: the advisor imports the cost models of all techniques.
    if name != "advise":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("workbench.advisor").advise


def load_ipython_extension(shell: object) -> None:
    """Add `%%ranks`, `%%rank` and `%workbench` to a notebook, for `%load_ext workbench`."""
    from workbench.notebook import load

    load(shell)
