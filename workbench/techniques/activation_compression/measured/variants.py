"""Methods of table 1 and their timed variants, by name.

"T1 int32" sends narrower indices, "R4 literal" draws positions as the paper does, "A1 feedback" adds earlier errors,
"A1 fused" takes the code of the weight in place of the activation's: the same numbers from fewer operations.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

import torch
from torch import Tensor

from workbench.compression import Codec, ErrorFeedback, Payload, RandomK
from workbench.compression.codec import site_seed
from workbench.compression.randomk import random_indices_by_definition
from workbench.timeline import Kind, Recorder

from ..cost import Setting
from ..method import Family, method
from ..training import DTYPES

__all__ = ["LiteralRandomK", "RecordedCodec", "Timed", "Variant", "timed"]


class Variant(Enum):
    """Difference from the method of table 1."""

    PLAIN = ""
    NARROW_INDEX = "int32"
    LITERAL = "literal"
    FEEDBACK = "feedback"
    FUSED = "fused"


NARROW_INDEX_BYTES = 4
FAMILIES = MappingProxyType(  # of methods that can have a variant; any can where none is named
    {
        Variant.NARROW_INDEX: (Family.TOP_K, Family.RANDOM_K),
        Variant.LITERAL: (Family.RANDOM_K,),
        Variant.FUSED: (Family.AUTOENCODER,),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """A method or a variant of it, with its sizes."""

    name: str  # in rows: the method, then the variant if there is one
    setting: Setting  # sizes, method and place
    variant: Variant  # difference from the method

    def codec(self, recorder: Recorder | None = None, seed: int = 0) -> Codec:
        """Build the codec; with a recorder, every encoding and decoding is noted."""
        setting = self.setting
        index_dtype = torch.int32 if setting.index_bytes == NARROW_INDEX_BYTES else torch.int64
        dtype = DTYPES[setting.value_bytes]
        codec = method(setting.method).codec(setting.hidden, dtype=dtype, index_dtype=index_dtype, seed=seed)
        if self.variant is Variant.LITERAL:
            codec = LiteralRandomK(codec.keep, seed, index_dtype=index_dtype)
        if self.variant is Variant.FEEDBACK:
            codec = ErrorFeedback(codec)
        return codec if recorder is None else RecordedCodec(codec, recorder)


def timed(name: str, **sizes) -> Timed:
    """Read a name such as "A1" or "T1 int32"; `sizes` are further fields of Setting."""
    base, _, suffix = name.partition(" ")
    family = method(base).family
    possible = [variant.value for variant in Variant if family in FAMILIES.get(variant, tuple(Family))]
    if suffix not in possible:
        raise ValueError(f"name is {name!r}; the variant of {base} must be one of {possible}")
    variant = Variant(suffix)
    if variant is Variant.NARROW_INDEX:
        sizes = sizes | {"index_bytes": NARROW_INDEX_BYTES}
    if variant is Variant.FUSED:
        sizes = sizes | {"fused": True}
    return Timed(name=name, setting=Setting(method=base, **sizes), variant=variant)


class LiteralRandomK(RandomK):
    """Random-K that draws positions as the paper's implementation does, one Python number at a time."""

    def kept_indices(self, x: Tensor, num_kept: int) -> Tensor:
        """Choose random positions, ascending."""
        generator = random.Random(int(self._stream.integers(2**62)))
        return torch.tensor(random_indices_by_definition(x.numel(), num_kept, generator))

    def for_site(self, site: str, hidden: int | None = None) -> LiteralRandomK:
        """Make a codec whose stream depends on (seed, site)."""
        codec = LiteralRandomK(self.keep, site_seed(self.seed, site), index_dtype=self.index_dtype)
        codec.site = site
        return codec


class RecordedCodec(Codec):
    """A codec whose encodings and decodings become actions of a recorder, labelled with the call site."""

    def __init__(self, codec: Codec, recorder: Recorder, site: str = "") -> None:
        super().__init__()
        self.codec, self.site, self._recorder = codec, site, recorder

    @property
    def aggregation(self):
        """Aggregate as the wrapped codec does."""
        return self.codec.aggregation

    @property
    def is_linear(self) -> bool:
        """Be linear where the wrapped codec is."""
        return self.codec.is_linear

    def encode(self, x: Tensor) -> Payload:
        """Encode as the wrapped codec does."""
        with self._recorder.during(f"encode {self.site}", Kind.ENCODE):
            return self.codec.encode(x)

    def decode(self, payload: Payload, *, out: Tensor | None = None) -> Tensor:
        """Decode as the wrapped codec does."""
        with self._recorder.during(f"decode {self.site}", Kind.DECODE):
            return self.codec.decode(payload, out=out)

    def decode_sum(self, payloads: Sequence[Payload]) -> Tensor:
        """Add messages as the wrapped codec does."""
        with self._recorder.during(f"decode {self.site}", Kind.DECODE):
            return self.codec.decode_sum(payloads)

    def input_gradient(self, grad_output: Tensor, payload: Payload) -> Tensor:
        """Differentiate as the wrapped codec does."""
        return self.codec.input_gradient(grad_output, payload)

    def for_site(self, site: str, hidden: int | None = None) -> RecordedCodec:
        """Make the codec of one call site."""
        return RecordedCodec(self.codec.for_site(site, hidden), self._recorder, site)

    def for_rank(self, rank: int) -> RecordedCodec:
        """Make the codec of one rank."""
        return RecordedCodec(self.codec.for_rank(rank), self._recorder, self.site)

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Count as the wrapped codec does."""
        return self.codec.payload_bytes(shape, dtype)
