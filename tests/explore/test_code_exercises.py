"""Functions that readers write: whatever one does is feedback."""

import re
import sys

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist

from workbench.explore.code_exercises import WAITING, check_on_cases, check_on_ranks

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as from a notebook: ranks import no test


def emptied(numbers):
    total = sum(numbers)
    numbers.clear()
    return total


def check_total(total):
    case = ([1, 3],)
    mistakes = {"Of how many?": lambda numbers: sum(numbers) / 2}
    return check_on_cases(total, [case, case], [4, 4], mistakes=mistakes, reason="A sum.")


@pytest.mark.parametrize(
    ("total", "said"),
    [
        (None, "not answered yet."),
        (..., "not answered yet."),
        (lambda numbers: numbers.clear(), "not answered yet. <lambda> returns None."),
        (sum, "right. A sum."),
        (emptied, "right. A sum."),  # each call has its own copy
        (lambda numbers: torch.tensor(4), "right. A sum."),
        (lambda numbers: torch.tensor([4.0], requires_grad=True), "right. A sum."),
        (lambda numbers: torch.tensor([[4]], dtype=torch.bfloat16), "right. A sum."),
        (lambda numbers: np.float32(4), "right. A sum."),
        (lambda numbers: np.array([4]), "right. A sum."),
        (lambda numbers: 2, "not yet. <lambda>([1, 3]) is 2, not 4. Of how many?"),
        (lambda numbers: "4", "not yet. <lambda>([1, 3]) is '4', not 4."),
        (lambda numbers: [4], "not yet. <lambda>([1, 3]) is [4], not 4."),
        (lambda numbers: float("nan"), "not yet. <lambda>([1, 3]) is nan, not 4."),
        (lambda numbers: numbers[2], "not yet. <lambda> raised IndexError"),
        (lambda: 4, "not yet. <lambda> raised TypeError"),
        (4, "not yet. The answer is a function, not 4."),
    ],
)
def test_whatever_a_function_does_is_feedback(total, said):
    assert str(check_total(total)).startswith(said)


def summed(x):
    dist.all_reduce(x)
    return x


def alone(x):
    return x if dist.get_rank() else summed(x)


def failing(x):
    if dist.get_rank() == 1:
        raise ValueError("no")
    return summed(x)


def work(function):
    return function(torch.tensor([1.0 + dist.get_rank()]))


def check_sum(reader):
    mistakes = {"Nothing was sent.": lambda x: x}
    return check_on_ranks(reader, summed, work, num_ranks=3, mistakes=mistakes, reason="A sum.")


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (None, "not answered yet."),
        (lambda x: x.grad, "not answered yet. <lambda> returns None on rank 0."),
        (lambda x: x if dist.get_rank() else None, "not yet. <lambda> returns None on rank 0."),
        (summed, "right. A sum."),
        (lambda x: x, "not yet. Rank 0: [1] is not [6]. Nothing was sent."),
        (lambda x: summed, "not yet. Rank 0: <function summed"),
        (failing, "not yet. Rank 1: failing raised ValueError in line"),
    ],
)
def test_whatever_a_function_does_on_ranks_is_feedback(reader, said, exercises_on_pools):
    assert str(check_sum(reader)).startswith(said)


def test_a_rank_that_waits_for_another_one_is_named_with_its_line(exercises_on_pools, monkeypatch):
    check_sum(summed)  # the ranks have imported what they need
    monkeypatch.setattr("workbench.explore.code_exercises.TIMEOUT_S", 4.0)
    text = check_sum(alone).text
    assert re.match(r"Rank 0 did not answer within 4 s because it waits for another rank in line \d+\.", text)
    assert text.endswith(WAITING)


@pytest.mark.parametrize(
    "right", [[1, 2], (1.0, 2.0), torch.tensor([1, 2]), [torch.tensor(1), np.float32(2)], range(1, 3)]
)
def test_a_list_of_numbers_is_right_whatever_holds_it(right):
    assert str(check_pair(lambda: right)).startswith("right.")


@pytest.mark.parametrize("wrong", [3, [1], [1, 2, 3], {1, 2}, "12", [2, 1], [None, 2]])
def test_another_list_is_wrong(wrong):
    assert str(check_pair(lambda: wrong)).startswith("not yet.")


def check_pair(pair):
    return check_on_cases(pair, [()], [(1, 2)], mistakes={}, reason="Both.")


def test_one_byte_too_many_has_a_hint():
    feedback = check_on_cases(lambda: b"ab", [()], [b"a"], mistakes={}, reason="")
    assert feedback.text.endswith("eight bits need one byte, and only the ninth needs a second one.")
