"""Words of running text, and their ids in the order of their frequency, as embedding tables are laid out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["UNKNOWN", "Vocabulary", "split_words"]

UNKNOWN = "<unk>"
WORD = re.compile(r"\w+|[^\w\s]")  # letters and digits in a row, or one other sign


def split_words(text: str) -> list[str]:
    """Return the lower-cased words and signs of a text, in order."""
    return WORD.findall(text.lower())


class Vocabulary:
    """The words of some sentences with their ids: special words first, then the most frequent ones.

    Args:
        sentences: Words to count.
        special: Words with the first ids, among them `UNKNOWN`.
        least: Rarer words are unknown.
    """

    def __init__(self, sentences: Iterable[Sequence[str]], *, special: Sequence[str] = (UNKNOWN,), least: int = 1):
        if UNKNOWN not in special:
            raise ValueError(f"special is {special!r}, must hold {UNKNOWN!r}")
        counts: Counter[str] = Counter()
        for words in sentences:
            counts.update(words)
        kept = (word for word, count in counts.most_common() if count >= least and word not in special)
        self.words = (*special, *kept)
        self._ids = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> np.ndarray:
        """Return the id of every word, int64."""
        unknown = self._ids[UNKNOWN]
        return np.array([self._ids.get(word, unknown) for word in words], dtype=np.int64)
