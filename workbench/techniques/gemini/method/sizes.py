"""How large checkpoints are: parameters of table 6.2's models with heads, bytes a parameter, a machine's shard."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from types import MappingProxyType

from workbench.checks import require_counts, require_not_negative

__all__ = ["TABLE_6_2", "Family", "ModelSizes", "checkpoint_bytes", "machine_shard_bytes", "num_parameters"]

# Of a checkpoint: the parameter and Adam's two moments, 4 bytes each (table 2.1's sizes over its parameters)
BYTES_PER_PARAMETER = 12
# Of mixed-precision training with Adam: the 12, and 2 each for a half-precision parameter and its gradient (Rajbhandari
# et al., ZeRO, section 3.1)
GPU_BYTES_PER_PARAMETER = 16
VOCABULARY = 50_265  # Tokens (section 6.7.1)
SEQUENCE = 512  # Tokens (section 6.7.1)


class Family(StrEnum):
    """A family of models: what surrounds the layers differs."""

    GPT_2 = "GPT-2"
    ROBERTA = "RoBERTa"
    BERT = "BERT"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSizes:
    """A row of table 6.2."""

    family: Family  # GPT-2, RoBERTa or BERT
    hidden_size: int  # h
    intermediate_size: int  # i, inner units of a perceptron
    num_layers: int  # L
    num_heads: int  # attention heads, which change no count
    vocab_size: int = VOCABULARY  # V
    max_positions: int = SEQUENCE  # P, of the learned position embedding; RoBERTa adds its two

    def __post_init__(self) -> None:
        require_counts(1, **{field.name: getattr(self, field.name) for field in fields(self) if field.name != "family"})


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


def checkpoint_bytes(parameters: float) -> float:
    """Return the bytes of a checkpoint, 12 a parameter."""
    require_not_negative(parameters=parameters)
    return BYTES_PER_PARAMETER * parameters


def machine_shard_bytes(parameters: float, num_machines: int) -> float:
    """Return the bytes of one machine's shard, the states being shared out evenly (ZeRO-3)."""
    require_counts(1, num_machines=num_machines)
    return checkpoint_bytes(parameters) / num_machines


def _sizes(family: Family, hidden_size: int, num_layers: int, num_heads: int) -> ModelSizes:
    inner = 4 * hidden_size  # in every row of table 6.2
    return ModelSizes(
        family=family, hidden_size=hidden_size, intermediate_size=inner, num_layers=num_layers, num_heads=num_heads
    )


# The models of the evaluation, by the paper's names
TABLE_6_2: Mapping[str, ModelSizes] = MappingProxyType(
    {
        "GPT-2 10B": _sizes(Family.GPT_2, 2560, 46, 40),
        "GPT-2 20B": _sizes(Family.GPT_2, 5120, 64, 40),
        "GPT-2 40B": _sizes(Family.GPT_2, 5120, 128, 40),
        "RoBERTa 40B": _sizes(Family.ROBERTA, 5120, 128, 40),
        "BERT 40B": _sizes(Family.BERT, 5120, 128, 40),
        "GPT-2 100B": _sizes(Family.GPT_2, 8192, 124, 64),
        "RoBERTa 100B": _sizes(Family.ROBERTA, 8192, 124, 64),
        "BERT 100B": _sizes(Family.BERT, 8192, 124, 64),
    }
)
