"""Exercises in which a reader writes a function: it runs on cases or on real ranks, and usual mistakes have hints.

    check_on_cases(reader, cases, expected, mistakes={hint: variant}, reason="...")      -> Feedback
    check_on_ranks(reader, right, work, num_ranks=4, mistakes={hint: variant}, reason="...")

None is no answer. An error, a value of another kind and a rank that waits for ever are feedback, too.
"""

import copy
import re
import traceback
from collections.abc import Callable, Mapping, Sequence, Sized
from functools import partial
from numbers import Real
from typing import Any

from workbench.explore.exercises import Feedback, Standing, agree
from workbench.launch.failures import RankFailed

__all__ = ["Unfinished", "check_on_cases", "check_on_ranks", "guarded"]

TIMEOUT_S = 20.0  # of a function on ranks, which takes milliseconds
MAX_SHOWN = 120  # characters of a value or an error
TOO_LONG = "One byte too many: eight bits need one byte, and only the ninth needs a second one."
WAITING = "A collective returns when all ranks have called it. Does a rank leave one out, or call another one?"


class Unfinished(Exception):
    """Ends a check: the reader's function returned nothing that can be compared."""

    def __init__(self, standing: Standing, text: str = ""):
        super().__init__(text)
        self.feedback = Feedback(standing=standing, text=text)


def guarded(function: Any, copied: Callable = copy.deepcopy) -> Callable:
    """Return a reader's function that gets copies of its arguments, and raises Unfinished for an error or None."""
    name = getattr(function, "__name__", "The function")

    def call(*args):
        _require(function)
        try:
            returned = function(*copied(args))
        except Unfinished:
            raise
        except Exception as error:
            place = _place(name, traceback.format_exc())
            raise Unfinished(Standing.NOT_YET, f"{name} raised {type(error).__name__}{place}: {error}") from error
        if returned is None:
            raise Unfinished(Standing.NOT_ANSWERED, f"{name} returns None.")
        return returned

    return call


def check_on_cases(
    function: Callable | None,
    cases: Sequence[tuple],
    expected: Sequence,
    *,
    mistakes: Mapping[str, Callable],
    reason: str,
    rel: float = 1e-6,
    says: Callable[[tuple, object, object], str] | None = None,
) -> Feedback:
    """Say whether a reader's function is right.

    Args:
        function: the reader's; None and a function that returns None are no answer.
        cases: the arguments of each call.
        expected: what each call should return: numbers, bytes, or sequences of these.
        mistakes: wrong functions, by the hint for who wrote one.
        reason: shown with a right function.
        rel: how far a number may be off, as a share of it.
        says: what is wrong with a case, found and expected; else the call is written out.
    """
    call, is_same = guarded(function), partial(agree, rel=rel)
    try:
        returned = [call(*case) for case in cases]
    except Unfinished as end:
        return end.feedback
    wrong = [triple for triple in zip(cases, returned, expected, strict=True) if not is_same(*triple[1:])]
    if not wrong:
        return Feedback(standing=Standing.RIGHT, text=reason)
    case, answer, wanted = wrong[0]
    written = f"{getattr(function, '__name__', '')}({', '.join(map(_shown, case))})"
    text = says(case, answer, wanted) if says else f"{written} is {_shown(answer)}, not {_shown(wanted)}."
    hints = [hint for hint, variant in mistakes.items() if is_same(returned, [variant(*case) for case in cases])]
    if not hints and isinstance(wanted, bytes) and isinstance(answer, Sized) and len(answer) == len(wanted) + 1:
        hints = [TOO_LONG]
    return Feedback(standing=Standing.NOT_YET, text=" ".join([text, *hints[:1]]))


def check_on_ranks(
    function: Callable | None,
    right: Callable,
    work: Callable[[Callable], object],
    *,
    num_ranks: int,
    mistakes: Mapping[str, Callable],
    reason: str,
    of: str = "",
) -> Feedback:
    """Say whether a reader's function is right on real ranks.

    Args:
        function, mistakes, reason: as in `check_on_cases`.
        right: what the function should be.
        work: called on each rank with one of the functions: gives it arguments, and returns what is compared;
            a list of tuples is one of cases, of which the first that is wrong is shown.
        num_ranks: how many.
        of: names of what is compared, for a wrong answer.
    """
    from workbench.launch import Ranks  # it starts processes, which a page in a browser cannot

    name = getattr(function, "__name__", "The function")
    try:
        _require(function)
        with Ranks(num_ranks, preload=[work.__module__]) as ranks:
            known = ranks.run(_all_of, work, [right, *mistakes.values()], timeout_s=TIMEOUT_S)
            returned = ranks.run(_answer, work, function, timeout_s=TIMEOUT_S)
    except Unfinished as end:
        return end.feedback
    except RankFailed as failed:
        return Feedback(standing=Standing.NOT_YET, text=_told(failed, name))
    expected, *others = map(list, zip(*known, strict=True))
    if without := [rank for rank, value in enumerate(returned) if value is None]:
        is_answered, text = len(without) < num_ranks, f"{name} returns None on rank {without[0]}."
        return Feedback(standing=Standing.NOT_YET if is_answered else Standing.NOT_ANSWERED, text=text)
    wrong = [(rank, *pair) for rank, pair in enumerate(zip(returned, expected, strict=True)) if not agree(*pair)]
    if not wrong:
        return Feedback(standing=Standing.RIGHT, text=reason)
    rank, answer, wanted = wrong[0]
    if isinstance(wanted, list) and isinstance(wanted[0], tuple) and len(answer) == len(wanted):
        answer, wanted = next(pair for pair in zip(answer, wanted, strict=True) if not agree(*pair))
    text = f"Rank {rank}: {of}{': ' * bool(of)}{_shown(answer)} is not {_shown(wanted)}."
    hints = (hint for hint, wanted in zip(mistakes, others, strict=True) if agree(returned, wanted))
    return Feedback(standing=Standing.NOT_YET, text=f"{text} {next(hints, '')}".rstrip())


def _require(function: object) -> None:
    if function is None or function is ... or _is_stub(function):
        raise Unfinished(Standing.NOT_ANSWERED)
    if not callable(function):
        raise Unfinished(Standing.NOT_YET, f"The answer is a function, not {_shown(function)}.")


def _stub(): ...


def _described_stub():
    """Do nothing."""


def _is_stub(function: object) -> bool:
    """Whether a function has no body yet, which is seen without starting ranks."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_code not in (_stub.__code__.co_code, _described_stub.__code__.co_code):
        return False
    return set(code.co_consts) <= {None, function.__doc__}


def _all_of(work: Callable, functions: Sequence[Callable]) -> list:
    return [work(function) for function in functions]


def _answer(work: Callable, function: Callable) -> object:
    """Return what a reader's function comes to on this rank; an error stays one, so that no rank waits for this one."""
    try:
        return work(guarded(function, copied=tuple))  # made for this call; groups of ranks have no copies
    except Unfinished as end:
        if end.feedback.standing is Standing.NOT_YET:
            raise
        return None


def _told(failed: RankFailed, name: str) -> str:
    """Say how the first rank failed."""
    first = failed.failures[0]
    message = first.message.split("Unfinished: ")[-1]
    if "did not answer" not in message:
        return f"Rank {first.rank}: {message[:MAX_SHOWN]}"
    return f"Rank {first.rank} {message}{_place(name, first.traceback)}. {WAITING}"


def _place(name: str, trace: str) -> str:
    """Return the line of the reader's function in a traceback or a dump of a stack."""
    lines = re.findall(rf"line (\d+),? in {re.escape(name)}\b", trace)
    return f" in line {lines[-1]}" if lines else ""


def _shown(value: object) -> str:
    """Write a value in a line."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Real):
        return str(value) if isinstance(value, int) else f"{float(value):.6g}"
    if isinstance(value, list | tuple):
        text = f"[{', '.join(map(_shown, value))}]" if isinstance(value, list) else f"({', '.join(map(_shown, value))})"
    else:
        text = " ".join(repr(value).split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} …"
