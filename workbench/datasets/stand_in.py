"""Generated text for machines without the real data: a small grammar whose labels follow by rule.

It can be learnt, so notebooks run, but it never supports a claim about accuracy.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from workbench.datasets.source import DataSource, SourceKind

__all__ = ["STAND_IN_ROWS", "glue_columns", "running_text", "stand_in_source"]

STAND_IN_ROWS = MappingProxyType({"train": 2000, "validation": 400, "validation_matched": 400, "test": 400})  # rows

NOUNS = ("film", "story", "actor", "river", "train", "teacher", "machine", "garden", "letter", "market", "song", "city")
SYNONYMS = MappingProxyType(
    {"film": "movie", "story": "tale", "river": "stream", "teacher": "tutor", "song": "tune", "city": "town"}
)
GOOD = ("warm", "bright", "charming", "fresh", "honest", "lively")
BAD = ("dull", "broken", "tired", "hollow", "bitter", "clumsy")
VERBS = ("follows", "finds", "carries", "praises", "meets", "leaves")
PLACES = ("in the morning", "near the harbour", "after the storm", "before dinner", "without a word", "every winter")


def _clause(draw: random.Random, adjectives: Sequence[str]) -> list[str]:
    """Draw a noun phrase, a verb and an object: six words."""
    subject, other = draw.sample(NOUNS, 2)
    return ["the", draw.choice(adjectives), subject, draw.choice(VERBS), "the", other]


def _sentence(draw: random.Random) -> list[str]:
    """Draw a clause of either sentiment with a place or time behind it."""
    return [*_clause(draw, GOOD + BAD), *draw.choice(PLACES).split()]


def _reworded(words: Sequence[str]) -> list[str]:
    return [SYNONYMS.get(word, word) for word in words]


def _acceptable(draw: random.Random) -> tuple[tuple[str, ...], int]:
    """Label 1: a sentence as drawn; label 0: its words in reverse order."""
    words, label = _sentence(draw), draw.randrange(2)
    return (" ".join(words if label else words[::-1]),), label


def _sentiment(draw: random.Random) -> tuple[tuple[str, ...], int]:
    """Label 1: the adjective is a good one; label 0: a bad one."""
    label = draw.randrange(2)
    words = _clause(draw, GOOD if label else BAD)
    return (" ".join([*words, *draw.choice(PLACES).split()]),), label


def _paraphrase(draw: random.Random) -> tuple[tuple[str, ...], int]:
    """Label 1: the second sentence is the first with synonyms; label 0: another sentence."""
    first, label = _sentence(draw), draw.randrange(2)
    second = _reworded(first) if label else _reworded(_sentence(draw))
    return (" ".join(first), " ".join(second)), label


def _similarity(draw: random.Random) -> tuple[tuple[str, ...], float]:
    """Score 0 to 5: five times the share of a clause's four content words that the other clause also has."""
    first, second = _clause(draw, GOOD), _clause(draw, BAD)
    content = (1, 2, 3, 5)  # places of adjective, subject, verb and object
    for place in draw.sample(content, draw.randrange(5)):
        second[place] = first[place]
    same = sum(first[place] == second[place] for place in content)
    return (" ".join(first), " ".join(second)), 5.0 * same / len(content)


def _inference(draw: random.Random, num_labels: int) -> tuple[tuple[str, ...], int]:
    """Label 0: the second text is the clause alone; last label: it is its denial; 1 of 3: it is a new sentence."""
    premise, label = _sentence(draw), draw.randrange(num_labels)
    denial = [*premise[:3], "never", *premise[3:6]]
    choices = (premise[:6], denial) if num_labels == 2 else (premise[:6], _sentence(draw), denial)
    return (" ".join(premise), " ".join(choices[label])), label


def _answer(draw: random.Random) -> tuple[tuple[str, ...], int]:
    """Label 0: the sentence answers the question (same subject and verb); label 1: it is another sentence."""
    sentence, label = _sentence(draw), draw.randrange(2)
    asked = sentence if label == 0 else _sentence(draw)
    return (f"what {asked[3]} the {asked[5]} ?", " ".join(sentence)), label


_RULES: Mapping[str, Callable[[random.Random], tuple[tuple[str, ...], float]]] = MappingProxyType(
    {
        "cola": _acceptable,
        "sst2": _sentiment,
        "mrpc": _paraphrase,
        "qqp": _paraphrase,
        "stsb": _similarity,
        "mnli": lambda draw: _inference(draw, 3),
        "rte": lambda draw: _inference(draw, 2),
        "qnli": _answer,
    }
)


def glue_columns(task: str, text_columns: Sequence[str], split: str) -> dict[str, list[Any]]:
    """Generate the text columns, `label` and `idx` of a GLUE-like task, the same on every machine."""
    draw = random.Random(f"stand-in {task} {split}")
    rows = [_RULES[task](draw) for _ in range(STAND_IN_ROWS[split])]
    columns: dict[str, list[Any]] = {
        name: [texts[place] for texts, _ in rows] for place, name in enumerate(text_columns)
    }
    return {**columns, "label": [label for _, label in rows], "idx": list(range(len(rows)))}


def running_text(split: str) -> list[str]:
    """Generate lines of running text with a heading every tenth line, the same on every machine."""
    draw = random.Random(f"stand-in running text {split}")
    lines = []
    for number in range(STAND_IN_ROWS[split]):
        sentences = [" ".join(_sentence(draw)) for _ in range(draw.randrange(3, 7))]
        heading = f"= {draw.choice(NOUNS)} ="
        lines.append(heading if number % 10 == 0 else " . ".join(sentences) + " .")
    return lines


def stand_in_source(name: str, columns: Mapping[str, Sequence[Any]], unit: str, meaningless: str) -> DataSource:
    """Return the source of generated columns, whose losses or scores mean nothing."""
    num_rows = len(next(iter(columns.values())))
    detail = f"{num_rows:,} generated {unit}; not real data, {meaningless} mean nothing"
    digest = sha256(json.dumps(dict(columns), sort_keys=True).encode()).hexdigest()
    return DataSource(name=name, kind=SourceKind.STAND_IN, detail=detail, sha256=digest, complete=False)
