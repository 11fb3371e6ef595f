"""The table of one model family's weights in Hugging Face checkpoints."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from workbench.parallel.linear import ShardedLinear

__all__ = ["LAYER_FIELDS", "Names"]

LAYER_FIELDS = {
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "mlp_size": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
    "init_std": "initializer_range",
}
"""A field of TransformerConfig, and the number of layers -> the field of a Hugging Face config."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """The names of one family: of modules, and of parameters that no module of torch holds, here -> in checkpoints."""

    models: tuple[type[nn.Module], ...]  # classes of the family: the encoder, and models whose `encoder` it is
    required: tuple[str, ...]  # prefixes of entries that a checkpoint must have: all but the heads
    plain: Callable[[str], str]  # a checkpoint's name, of whatever age and with whatever prefix -> the name used here
    layer: str  # prefix of a layer there, before its number
    cut: Mapping[str, tuple[str, ...]]  # a layer's cut linears -> the linears that each is a stack of
    norms: Mapping[str, str]  # of a layer
    before: Mapping[str, str]  # of the encoder, before the layers
    after: Mapping[str, str]  # of the model or its encoder, after them

    def cut_of(self, model: nn.Module) -> Iterator[tuple[tuple[str, ...], ShardedLinear]]:
        """Yield a model's cut linears with the names of the linears that each is a stack of."""
        for site, layer in self._layers(model):
            for ours, names in self.cut.items():
                yield tuple(f"{site}.{name}" for name in names), _found(ours, layer)

    def replicated_of(self, model: nn.Module) -> dict[str, Tensor]:
        """Give a model's parameters that every tensor-parallel rank holds whole."""
        encoder = getattr(model, "encoder", model)
        named = [(name, _found(ours, encoder)) for ours, name in self.before.items()]
        for site, layer in self._layers(model):
            named += [(f"{site}.{name}", _found(ours, layer)) for ours, name in self.norms.items()]
        named += [(name, _found(ours, model, encoder)) for ours, name in self.after.items()]
        parameters = {}
        for name, part in named:
            if isinstance(part, Tensor):
                parameters[name] = part
            elif part is not None:  # else another stage has it
                parameters |= {f"{name}.{kind}": parameter for kind, parameter in part.named_parameters()}
        return parameters

    def _layers(self, model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        encoder: Any = getattr(model, "encoder", model)
        numbers = getattr(encoder, "layer_range", range(len(encoder.layers)))
        return ((f"{self.layer}.{number}", layer) for number, layer in zip(numbers, encoder.layers, strict=True))


def _found(path: str, *holders: nn.Module) -> Any:
    """Follow attributes from the first of the holders that has them; None if none has."""
    for holder in holders:
        part: Any = holder
        for name in path.split("."):
            part = getattr(part, name, None)
        if part is not None:
            return part
    return None
