"""The sizes of a transformer that its parameters and its work follow from: GPT-2, BERT and RoBERTa."""

from dataclasses import dataclass, fields, replace
from enum import StrEnum

from workbench.checks import require_counts

from .inventory import Workload

__all__ = ["Family", "ModelSizes", "num_parameters"]


class Family(StrEnum):
    """A family of models: what surrounds the layers differs."""

    GPT_2 = "GPT-2"
    ROBERTA = "RoBERTa"
    BERT = "BERT"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSizes:
    """A model of a family."""

    family: Family  # GPT-2, RoBERTa or BERT
    hidden_size: int  # h
    intermediate_size: int  # i, inner units of a perceptron
    num_layers: int  # L
    num_heads: int  # attention heads, which change no count
    vocab_size: int  # V
    max_positions: int  # P, of the learned position embedding; RoBERTa adds its two

    def __post_init__(self) -> None:
        require_counts(1, **{field.name: getattr(self, field.name) for field in fields(self) if field.name != "family"})

    def workload(self, name: str, *, batch: int, sequence: int) -> Workload:
        """Return the model with a micro-batch of so many sequences of so many tokens."""
        model = Workload(
            name=name,
            hidden=self.hidden_size,
            inner=self.intermediate_size,
            num_layers=self.num_layers,
            vocabulary=self.vocab_size,
            batch=batch,
            sequence=sequence,
        )
        return replace(model, other_parameters=num_parameters(self) - model.num_parameters)


def num_parameters(sizes: ModelSizes) -> int:
    """Count the parameters of a model with its language-model head.

    A layer has 4h² + 4h in attention, 2hi + i + h in the perceptron and 4h in two norms: 12h² + 13h where i = 4h. The
    head shares its matrix with the token embedding. GPT-2: a norm at the end. BERT: two token types, a norm behind the
    embeddings, the pooler, a head of h² + h, a norm and V biases. RoBERTa: as BERT, with one token type, two more
    positions and no pooler.
    """
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    layer = (4 * hidden**2 + 4 * hidden) + (2 * hidden * inner + inner + hidden) + 4 * hidden
    embeddings = (sizes.vocab_size + sizes.max_positions) * hidden
    head = hidden**2 + hidden + 2 * hidden + sizes.vocab_size
    around = {
        Family.GPT_2: 2 * hidden,
        Family.BERT: (2 + 2) * hidden + (hidden**2 + hidden) + head,
        Family.ROBERTA: (2 + 1 + 2) * hidden + head,
    }[sizes.family]
    return embeddings + sizes.num_layers * layer + around
