"""Multi30k (Elliott et al., 2016), task 1: captions of photographs in English, and their German translations."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from workbench.checks import require_one_of
from workbench.datasets.places import sha256_of
from workbench.datasets.source import Dataset, read_tables, resolve, source_of
from workbench.datasets.stand_in import glue_columns, stand_in_source

__all__ = ["LANGUAGES", "PUBLISHED_PAIRS", "load"]

LANGUAGES = ("de", "en")
PUBLISHED_PAIRS: Mapping[str, int] = MappingProxyType({"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000})
STAND_IN_SPLITS = MappingProxyType({"train": "train", "val": "validation", "test_2016_flickr": "test"})


def load(split: str = "train", limit: int | None = None) -> Dataset:
    """Load the pairs of a split from the first place that has them, or generate some; `limit` keeps the first pairs."""
    require_one_of(PUBLISHED_PAIRS, split=split)
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, must be at least 1 or None")
    name = f"multi30k/{split}"
    german, english = (resolve(f"multi30k/{language}", split) for language in LANGUAGES)
    if german is None or english is None:
        columns = _stand_in(split)
        source = stand_in_source(name, columns, "pairs", "losses")
    else:
        columns = {"de": _read(german.paths, "de"), "en": _read(english.paths, "en")}
        paths = tuple(dict.fromkeys((*german.paths, *english.paths)))  # the hub has both in one file
        files = replace(german, paths=paths, sha256=sha256_of(*paths))
        warning = "losses are not comparable with published ones"
        source = source_of(name, files, len(columns["de"]), PUBLISHED_PAIRS[split], "pairs", warning)
    dataset = Dataset(name="multi30k", split=split, columns=columns, text_columns=LANGUAGES, source=source)
    return dataset if limit is None else dataset.rows(range(min(limit, len(dataset))))


def _read(paths: Sequence[Path], language: str) -> list[str]:
    """Read a language from its file of the folder, or from the hub's tables of both."""
    if paths[0].suffix == ".gz":
        with gzip.open(paths[0], "rt", encoding="utf-8") as stream:
            return [line.strip() for line in stream]
    return [line.strip() for line in read_tables(paths, (language,))[language]]


def _stand_in(split: str) -> dict[str, list[str]]:
    """Generate English sentences; the "German" of one is its words, each spelt backwards."""
    english = glue_columns("sst2", ("sentence",), STAND_IN_SPLITS[split])["sentence"]
    german = [" ".join(word[::-1] for word in sentence.split()) for sentence in english]
    return {"de": german, "en": english}
