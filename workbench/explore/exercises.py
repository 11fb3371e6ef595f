"""Exercises that check themselves: a hint when wrong, the reason when right.

    check(exercise, 42)     -> Feedback, which a notebook shows as a line of text

An unanswered exercise says so and fails nothing; `solution(exercise)` shows the answer to a reader who asks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from numbers import Real
from typing import Any

__all__ = ["Exercise", "Feedback", "Mistake", "Standing", "agree", "check", "plain", "solution"]

Answer = float | tuple[float, ...]


class Standing(Enum):
    """How an answer stands."""

    NOT_ANSWERED = "not answered yet"
    NOT_YET = "not yet"
    RIGHT = "right"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mistake:
    """A wrong answer that many give, with its hint."""

    answer: Answer  # the wrong answer
    hint: str  # what to think about; does not give the answer away


@dataclass(frozen=True, kw_only=True, slots=True)
class Exercise:
    """A question with a numerical answer."""

    question: str  # as the notebook asks it, with the unit of the answer
    answer: Answer  # computed by the library, not typed
    hint: str  # for any other wrong answer
    reason: str  # why the answer is right; shown with a right answer
    mistakes: tuple[Mistake, ...] = ()  # the known ones
    rel: float = 1e-6  # how far an answer may be off, as a share of it

    def __post_init__(self) -> None:
        if any(agree(mistake.answer, self.answer, self.rel) for mistake in self.mistakes):
            raise ValueError(f"mistakes is {self.mistakes!r}; none must be accepted as the answer {self.answer!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
    """The reaction to an answer."""

    standing: Standing  # how the answer stands
    text: str  # a hint or the reason; empty if there is no answer

    @property
    def is_right(self) -> bool:
        """Whether the answer is right: what a grader asks for."""
        return self.standing is Standing.RIGHT

    def __str__(self) -> str:
        return f"{self.standing.value}. {self.text}".rstrip()

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        mark = {Standing.NOT_ANSWERED: "○", Standing.NOT_YET: "✗", Standing.RIGHT: "✓"}[self.standing]
        return f"{mark} **{self.standing.value}.** {self.text}".rstrip()


def check(exercise: Exercise, answer: object) -> Feedback:
    """Say whether a number or a sequence of numbers is right, and help if it is not; None or `...` is no answer."""
    if answer is None or answer is ...:
        return Feedback(standing=Standing.NOT_ANSWERED, text="")
    given = plain(answer)
    wanted, is_wanted = "one number", isinstance(given, Real)
    if isinstance(exercise.answer, tuple):
        wanted, is_wanted = "a list of numbers", _is_list(given) and all(isinstance(number, Real) for number in given)
    if not is_wanted:
        return Feedback(standing=Standing.NOT_YET, text=f"The answer is {wanted}.")
    if agree(given, exercise.answer, exercise.rel):
        return Feedback(standing=Standing.RIGHT, text=exercise.reason)
    hints = (mistake.hint for mistake in exercise.mistakes if agree(given, mistake.answer, exercise.rel))
    return Feedback(standing=Standing.NOT_YET, text=next(hints, exercise.hint))


def solution(exercise: Exercise) -> str:
    """Return the answer and its reason, for a reader who asks."""
    if isinstance(exercise.answer, tuple):
        return f"[{', '.join(map(_written, exercise.answer))}]: {exercise.reason}"
    return f"{_written(exercise.answer)}: {exercise.reason}"


def _written(number: float) -> str:
    return f"{number:.10g}"  # 10 digits: whole bytes of a message stay whole


def plain(value: Any) -> Any:
    """Return an answer as plain numbers: tensors and arrays of any type as lists, those of one value as a number."""
    if not hasattr(value, "tolist"):
        return [plain(element) for element in value] if isinstance(value, list | tuple) else value
    listed = inner = value.tolist()
    while isinstance(inner, list) and len(inner) == 1:
        inner = inner[0]
    return listed if isinstance(inner, list) else inner


def agree(answer: Any, expected: Any, rel: float = 1e-6) -> bool:
    """Return whether an answer, which may be anything, is what it should be: number, bytes, or a sequence of these."""
    expected = _listed(expected)
    if isinstance(expected, bytes) and isinstance(answer, bytes | bytearray):
        return answer == expected
    if isinstance(expected, Sequence):  # bytes are one of numbers, too
        answer = _listed(answer)
        if not _is_list(answer) or len(answer) != len(expected):
            return False
        return all(agree(*pair, rel) for pair in zip(answer, expected, strict=True))
    answer = plain(answer)
    return isinstance(answer, Real) and math.isclose(answer, expected, rel_tol=rel, abs_tol=1e-12)


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
