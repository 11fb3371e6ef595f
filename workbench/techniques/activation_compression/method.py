"""The compression methods of table 1, as codecs and as bytes.

B is the micro-batch, s the sequence, h the hidden size and c the code size, which keeps its share of the hidden size; v
are the bytes of a value (`value_bytes`) and i those of an index (`index_bytes`) on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

import torch

from workbench.compression import FP16, AutoEncoder, Codec, Identity, Quantize, QuantizeFeatures, RandomK, TopK
from workbench.compression.quantize import SCALE_AND_BIAS_BYTES, SCALE_BYTES

__all__ = ["METHODS", "Family", "Method", "code_size", "method"]

PAPER_HIDDEN = 1024  # elements; BERT-large, section 4.1
VALUE_BYTES = 2  # fp16, section 4.1


class Family(Enum):
    """What a method does to an activation."""

    NONE = "no compression"
    HALF = "half precision"
    AUTOENCODER = "learned linear code"
    TOP_K = "largest magnitudes"
    RANDOM_K = "random elements"
    QUANTIZATION = "fewer bits"


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """One row of table 1."""

    name: str  # the paper's name, such as "A1"
    family: Family  # what is done to the activation
    paper_code_size: int = 0  # c at a hidden size of 1024 for the learned and the sparse methods, else 0
    same_bytes: bool = False  # a sparse method sends as many bytes as the code of size c (else: as many elements)
    bits: int = 0  # bits of a quantised value, else 0
    by_feature: bool = False  # a feature shares a scale (else: a token)

    def kept_share(self, hidden: int, *, value_bytes: int = VALUE_BYTES, index_bytes: int = 8) -> float:
        """Return the share of the elements that a sparse method keeps.

        Source: table 1; k = B·s·c·v/(v+i) for equal bytes, k = B·s·c for equal elements. `torch.topk` gives int64
        indices, i = 8 (section 3.2).
        """
        share = code_size(self.paper_code_size, hidden) / hidden
        return share * value_bytes / (value_bytes + index_bytes) if self.same_bytes else share

    def codec(
        self, hidden: int, *, dtype: torch.dtype = torch.float16, index_dtype: torch.dtype = torch.int64, seed: int = 0
    ) -> Codec:
        """Build the codec for activations whose last dimension is `hidden`.

        `dtype` is that of the activation and of learned weights, and fixes the bytes of a value; `index_dtype` that of
        the indices that a sparse method sends; `seed` that of learned weights and of random choices.
        """
        value_bytes = torch.empty((), dtype=dtype).element_size()
        keep = self.kept_share(hidden, value_bytes=value_bytes, index_bytes=index_dtype.itemsize)
        match self.family:
            case Family.NONE:
                return Identity()
            case Family.HALF:
                return FP16()
            case Family.AUTOENCODER:
                return AutoEncoder(hidden, code_size(self.paper_code_size, hidden), seed=seed, dtype=dtype)
            case Family.TOP_K:
                return TopK(keep, index_dtype=index_dtype)
            case Family.RANDOM_K:
                return RandomK(keep, seed=seed, index_dtype=index_dtype)
            case Family.QUANTIZATION:
                return QuantizeFeatures(self.bits) if self.by_feature else Quantize(self.bits)

    def message_bytes(self, rows: int, hidden: int, *, value_bytes: int = VALUE_BYTES, index_bytes: int = 8) -> int:
        """Return the bytes of one encoded activation [rows, hidden], rows = B·s, by the paper's definition.

        Source: section 3.1, table 1; the closed form that the codecs' own counts are tested against.
        """
        elements = rows * hidden
        match self.family:
            case Family.NONE:
                return elements * value_bytes
            case Family.HALF:
                return elements * 2
            case Family.AUTOENCODER:
                return rows * code_size(self.paper_code_size, hidden) * value_bytes
            case Family.TOP_K | Family.RANDOM_K:
                share = self.kept_share(hidden, value_bytes=value_bytes, index_bytes=index_bytes)
                return max(1, round(share * elements)) * (value_bytes + index_bytes)
            case Family.QUANTIZATION:
                scales = hidden * SCALE_BYTES if self.by_feature else rows * SCALE_AND_BIAS_BYTES
                return rows * -(-hidden * self.bits // 8) + scales


def code_size(paper_code_size: int, hidden: int) -> int:
    """Return c for a hidden size: the paper's share of 1024, at least 1."""
    return max(1, round(paper_code_size * hidden / PAPER_HIDDEN))


_ROWS = (
    Method(name="w/o", family=Family.NONE),
    Method(name="fp16", family=Family.HALF),
    Method(name="A1", family=Family.AUTOENCODER, paper_code_size=50),
    Method(name="A2", family=Family.AUTOENCODER, paper_code_size=100),
    Method(name="T1", family=Family.TOP_K, paper_code_size=50, same_bytes=True),
    Method(name="T2", family=Family.TOP_K, paper_code_size=100, same_bytes=True),
    Method(name="T3", family=Family.TOP_K, paper_code_size=50),
    Method(name="T4", family=Family.TOP_K, paper_code_size=100),
    Method(name="R1", family=Family.RANDOM_K, paper_code_size=50, same_bytes=True),
    Method(name="R2", family=Family.RANDOM_K, paper_code_size=100, same_bytes=True),
    Method(name="R3", family=Family.RANDOM_K, paper_code_size=50),
    Method(name="R4", family=Family.RANDOM_K, paper_code_size=100),
    Method(name="Q1", family=Family.QUANTIZATION, bits=2),
    Method(name="Q2", family=Family.QUANTIZATION, bits=4),
    Method(name="Q3", family=Family.QUANTIZATION, bits=8),
    Method(name="Q1f", family=Family.QUANTIZATION, bits=2, by_feature=True),
    Method(name="Q2f", family=Family.QUANTIZATION, bits=4, by_feature=True),
    Method(name="Q3f", family=Family.QUANTIZATION, bits=8, by_feature=True),
)
METHODS: Mapping[str, Method] = MappingProxyType({row.name: row for row in _ROWS})
"""The methods by name; "fp16" is ours, the honest baseline of 32-bit training."""


def method(name: str) -> Method:
    """Return the method called `name`; another name than those in METHODS is refused."""
    if name not in METHODS:
        raise ValueError(f"method={name!r}: one of {', '.join(METHODS)}")
    return METHODS[name]
