"""Functions that readers write in four lessons: each usual mistake has a hint, and so have ranks that hang."""

import importlib.util
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from workbench.explore import Standing, activation_compression, flextp, gemini, sdpipe
from workbench.explore.activation_compression import exercises as of_compression
from workbench.explore.flextp import coding as of_flextp
from workbench.explore.gemini import exercises as of_gemini

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def mistakes(variant, hints):
    return {hint: partial(variant, mistake=name) for name, hint in hints.items()}


LESSONS = {  # by function: the lesson, and functions with a usual mistake by their hint
    "encoded_sum": (activation_compression, of_compression.ENCODED_SUM_HINTS),
    "quantised": (activation_compression, of_compression.QUANTISED_HINTS),
    "columns_to_drop": (flextp, mistakes(of_flextp._columns_to_drop, of_flextp.COLUMN_HINTS)),
    "own_columns": (flextp, mistakes(of_flextp._own_columns, of_flextp.OWN_COLUMNS_HINTS)),
    "holders": (gemini, of_gemini.HOLDERS_HINTS),
    "sources": (gemini, mistakes(of_gemini._sources, of_gemini.SOURCES_HINTS)),
    "is_valid": (sdpipe, sdpipe.IS_VALID_HINTS),
    "average": (sdpipe, mistakes(sdpipe._average, sdpipe.AVERAGE_HINTS)),
}


def check(name, function):
    return getattr(LESSONS[name][0], f"check_{name}")(function)


def solution(name):
    path = NOTEBOOKS / LESSONS[name][0].__name__.rpartition(".")[2] / "solutions.py"
    spec = importlib.util.spec_from_file_location("solutions", path)
    solutions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(solutions)
    return getattr(solutions, name)


@pytest.mark.parametrize(("name", "hint"), [(name, hint) for name in LESSONS for hint in LESSONS[name][1]])
def test_each_usual_mistake_gets_its_own_hint(name, hint, exercises_on_pools):
    feedback = check(name, LESSONS[name][1][hint])
    assert feedback.standing is Standing.NOT_YET
    assert feedback.text.endswith(hint), feedback.text


def forgets_one(part, E, D, group):
    return group.sum([part @ E]) @ D if group.local_ranks[0] else part @ E @ D


def goes_round_for_ever(rank, *_):
    while rank == 0:
        pass
    return []


def stays_away(model, rank, members, add_up_):
    return model if rank == 0 else adds_up_outside(model, rank, members, add_up_) if rank in members else model


def adds_up_outside(model, rank, members, add_up_):
    add_up_(model)
    return model / len(members)


@pytest.mark.parametrize(
    ("name", "function", "words"),
    [
        ("encoded_sum", forgets_one, "A collective returns when all ranks have called it"),
        ("own_columns", goes_round_for_ever, "Rank 0 did not answer"),
        ("own_columns", lambda rank, sender, *_: None if rank == sender else [], "returns None on rank 0"),
        ("own_columns", lambda *_: [9], "index 9 is out of bounds"),
        ("sources", lambda *_: [4] * 4, "Rank"),
        ("sources", lambda *_: [], "is not"),
        ("average", stays_away, "A collective returns when all ranks have called it"),
        ("average", adds_up_outside, "rank 1 is not in the group"),
    ],
)
def test_ranks_that_hang_or_differ_are_feedback(name, function, words, exercises_on_pools, monkeypatch):
    monkeypatch.setattr("workbench.explore.code_exercises.TIMEOUT_S", 4.0)
    feedback = check(name, function)
    assert feedback.standing is Standing.NOT_YET
    assert words in feedback.text


def test_the_numbers_by_hand():
    row = torch.tensor([1.0, 2.0, -1.0, 8.0])
    assert solution("quantised")(row, 2).tolist() == [2, 2, -1, 8]  # levels -1, 2, 5, 8
    then, change = torch.zeros(2, 3), torch.tensor([0.5, 0.1, 0.4])
    now = torch.tensor([[0.0, 0.3, -0.2], [0.0, -0.3, 0.2]])
    # column 0 was dropped and keeps 0.5; the others moved 0.3 and 0.2
    assert solution("columns_to_drop")(then, now, change, [0], 2).tolist() == [1, 2]
    assert [solution("own_columns")(rank, 1, 4, 8) for rank in range(4)] == [[5, 6, 7], [], [0, 1], [2, 3, 4]]
    assert solution("holders")(5, 2) == [[0, 1], [1, 0], [2, 3], [3, 4], [4, 2]]  # a group, and a ring of 2, 3, 4
    assert solution("sources")([[0, 1], [1, 0], [2, 3], [3, 2]], {1, 3}) == [0, 0, 2, 2]


def test_the_work_on_ranks_is_that_of_the_library(pools):
    whole, sent_bytes = pools(3).run(of_compression._reduce_on_rank, solution("encoded_sum"))[1][0]
    assert whole.shape == (2, 3) and sent_bytes == 2 * 2 * 4  # two tokens, a code of two columns, fp32
    for sender, num_columns, _, total in pools(4).run(of_flextp._migrate_on_rank, solution("own_columns"))[2]:
        a, b = np.arange(1.0, 1 + 2 * num_columns).reshape(2, -1)
        assert total == a @ b, (sender, num_columns)
