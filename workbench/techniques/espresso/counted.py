"""The rows of what is counted: the paths of the decision tree."""

from typing import Any

from workbench.study.rows import value_row

from .method import compression_options, subtree_counts

__all__ = ["examples", "option_rows"]

SHOWN = 400  # every so many-th option is an example


def option_rows() -> list[dict[str, Any]]:
    """Return the number of paths through the tree and through its sub-trees."""
    rows = [value_row("options", len(compression_options()), part="tree")]
    return rows + [value_row("options", count, part=part) for part, count in subtree_counts().items()]


def examples() -> list[str]:
    """Return some options from all parts of the tree."""
    return [str(option) for option in compression_options()[::SHOWN]]
