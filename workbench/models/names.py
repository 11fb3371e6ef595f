"""The table of one model family's weights in Hugging Face checkpoints."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from workbench.parallel.linear import ShardedLinear

__all__ = ["Names"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """The names of one family, in both directions."""

    models: tuple[type[nn.Module], ...]  # classes of the family
    required: tuple[str, ...]  # prefixes of entries that a checkpoint must have: all but the heads
    plain: Callable[[str], str]  # a checkpoint's name, of whatever age and with whatever prefix -> the name used here
    # Gives a model's cut linears with the names of the linears that each is a stack of
    cut: Callable[[nn.Module], Iterator[tuple[tuple[str, ...], ShardedLinear]]]
    # Gives a model's parameters that every tensor-parallel rank holds whole
    replicated: Callable[[nn.Module], Iterator[tuple[str, nn.Parameter]]]
