"""Real ranks: the only room that starts processes.

`Ranks(4)` is a pool on this machine, `run_on_ranks` a single call; `run_here` and `IPyParallelRanks` run the same
functions under torchrun and on an ipyparallel cluster. Importing this package imports neither torch nor threads.
"""

from importlib import import_module

MODULE_OF = {
    "FailureKind": "failures",
    "IPyParallelRanks": "engines",
    "Machines": "machines",
    "PerRank": "calls",
    "RankFailed": "failures",
    "Ranks": "ranks",
    "ShapedHosts": "hosts",
    "rank_environment": "environment",
    "run_here": "engines",
    "run_on_ranks": "ranks",
    "tethered": "tether",
}

__all__ = [*MODULE_OF]


def __getattr__(name: str):
    if name not in MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULE_OF[name]}"), name)
