import pytest
import torch

from workbench.explore import Exercise, Mistake, Standing, check, solution

BYTES = Exercise(
    question="How many bytes are 3 fp16 values?",
    answer=6.0,
    hint="Count the bytes of one value first.",
    reason="3 values of 2 bytes.",
    mistakes=(Mistake(answer=3.0, hint="That is how many values there are."),),
)
VECTOR = Exercise(question="a + b?", answer=(0.0, 2.0), hint="Add them up.", reason="They add up.", rel=0.01)


@pytest.mark.parametrize("answer", [None, ...])
def test_an_unanswered_exercise_says_so_and_gives_nothing_away(answer):
    assert str(check(BYTES, answer)) == "not answered yet."


def test_a_right_answer_gets_the_reason():
    assert str(check(BYTES, 6)) == "right. 3 values of 2 bytes."


def test_a_known_mistake_gets_its_own_hint():
    assert str(check(BYTES, 3)) == "not yet. That is how many values there are."


def test_any_other_wrong_answer_gets_the_general_hint_without_the_answer():
    feedback = check(BYTES, 7)
    assert (feedback.standing, feedback.text) == (Standing.NOT_YET, BYTES.hint)
    assert "6" not in str(feedback)


@pytest.mark.parametrize("answer", ["6", [6], {"bytes": 6}])
def test_an_answer_of_the_wrong_form_is_told_which_form(answer):
    assert str(check(BYTES, answer)) == "not yet. The answer is one number."


@pytest.mark.parametrize("answer", [[0, 2], (0.0, 2.01), torch.tensor([0.0, 2.0])])
def test_a_vector_is_right_as_a_list_a_tuple_or_a_tensor_within_the_tolerance(answer):
    assert check(VECTOR, answer).standing is Standing.RIGHT


@pytest.mark.parametrize("answer", [[0, 2, 0], [0, 2.1], [0]])
def test_a_vector_with_a_wrong_element_or_length_is_not_right(answer):
    assert check(VECTOR, answer).standing is Standing.NOT_YET


def test_the_solution_is_given_to_who_asks():
    assert solution(BYTES) == "6: 3 values of 2 bytes."


def test_a_mistake_that_would_be_accepted_is_refused():
    with pytest.raises(ValueError, match="none must be accepted"):
        Exercise(question="?", answer=2.0, hint="h", reason="r", mistakes=(Mistake(answer=2.0, hint="no"),))
