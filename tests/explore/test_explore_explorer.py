"""Explorers draw what their controls stand at; exercises check themselves."""

import base64
import re
from dataclasses import replace

import pytest
import torch

from workbench import plots
from workbench.explore import Exercise, Explorer, Mistake, check, choice, solution, steps


def draw_bar(result):
    figure, ax = plots.figure()
    ax.bar(["result"], [result])
    return figure


def explorer(compute=lambda factor, base: factor * base, **options):
    options.setdefault("describe", lambda result: f"the product is {result}")
    return Explorer(
        compute,
        draw_bar,
        factor=steps("factor", (1, 2, 3), value=2, help="Multiplies.", text=lambda value: f"{value} times"),
        base=choice("base", {"ten": 10, "hundred": 100}, value=10, help="Is multiplied."),
        **options,
    )


def test_an_explorer_is_complete_before_a_control_is_touched():
    untouched = explorer()
    assert untouched.values == {"factor": 2, "base": 10}
    assert untouched.result == 20
    assert untouched.status == "the product is 20"
    assert untouched.png.startswith(b"\x89PNG")


def test_a_moved_control_draws_another_figure_and_a_result_is_computed_once():
    computed = []
    moved = explorer(lambda factor, base: computed.append((factor, base)) or factor * base)
    before = moved.png
    moved.set(factor=3)
    assert moved.result == 30
    assert moved.png != before
    moved.set(factor=2).set(factor=3)
    assert computed == [(2, 10), (3, 10)]


def test_the_reader_is_told_that_it_computes():
    seen = []
    moved = explorer(lambda factor, base: seen.append(moved.status if seen else "first") or factor * base)
    moved.set(factor=1)
    assert seen == ["first", "computing …"]


def test_an_impossible_choice_is_explained_and_the_figure_stays():
    def compute(factor, base):
        if factor == 3:
            raise ValueError("factor is 3; it must be less")
        return factor * base

    moved = explorer(compute)
    before = moved.png
    moved.set(factor=3)
    assert moved.status.startswith("Not possible: factor is 3; it must be less.")
    assert (moved.png, moved.result) == (before, 20)


def test_an_error_of_the_program_is_shown_and_not_swallowed():
    def compute(factor, base):
        return factor * base if factor == 2 else {}["missing"]

    moved = explorer(compute)
    with pytest.raises(KeyError):
        moved.set(factor=3)
    assert moved.status == "Failed: KeyError: 'missing'"


def test_an_interrupt_ends_the_word_that_it_computes():
    def compute(factor, base):
        if factor == 3:
            raise KeyboardInterrupt
        return factor * base

    moved = explorer(compute)
    with pytest.raises(KeyboardInterrupt):
        moved.set(factor=3)
    assert moved.status.startswith("Failed: KeyboardInterrupt")


def test_the_picture_is_given_as_svg_and_pdf_until_it_changes():
    shown = explorer()
    *_, export = shown.widget.children[-3].children[:2]
    export.click()
    links = shown.widget.children[-3].children[2].value
    files = dict(re.findall(r'download="picture.(\w+)" href="data:[^;]+;base64,([^"]+)"', links))
    assert base64.b64decode(files["svg"]).startswith(b"<?xml") and base64.b64decode(files["pdf"]).startswith(b"%PDF")
    shown.set(factor=3)
    assert shown.widget.children[-3].children[2].value == ""


def test_a_reset_puts_all_controls_back_and_draws_once():
    seen = []
    moved = explorer(describe=lambda result: seen.append(result) or "drawn")
    first = moved.png
    moved.set(factor=3, base=100)
    moved.widget.children[-3].children[0].click()
    assert (moved.values, moved.png) == ({"factor": 2, "base": 10}, first)
    assert seen == [20, 30, 300, 20]


def test_a_control_that_leaves_the_picture_as_it_is_is_named_when_moved():
    moved = explorer(lambda factor, base: min(factor, 2) * base)
    assert moved.set(factor=3).status == "the product is 20. No effect at these settings: factor."
    assert moved.set(base=100).status == "the product is 200"
    assert moved.set(factor=1, base=10).status == "the product is 10"


def test_with_a_quick_effect_controls_without_one_are_named_before_they_are_moved():
    shown = explorer(lambda factor, base: factor * base if base == 10 else 0, effect=lambda result: result)
    assert shown.status == "the product is 20"
    assert shown.set(base=100).status == "the product is 0. No effect at these settings: factor."


def test_help_labels_and_stable_classes_are_in_the_widgets():
    rows = explorer().widget.children
    slider, help_text = rows[0].children
    assert (slider.description, slider.tooltip) == ("factor", "Multiplies.")
    assert slider._dom_classes == ("workbench-control-factor",)
    assert help_text.value == "<small>Multiplies.</small>"
    status, figure = rows[-2:]
    assert (status._dom_classes, figure._dom_classes) == (("workbench-status",), ("workbench-figure",))
    assert 'alt="the product is 20"' in rows[-1].value


def test_where_widgets_cannot_be_shown_the_figure_is():
    bundle = explorer()._repr_mimebundle_()
    assert {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"} <= set(bundle)


BYTES = Exercise(
    question="How many bytes are 3 fp16 values?",
    answer=6.0,
    hint="Count the bytes of one value first.",
    reason="3 values of 2 bytes.",
    mistakes=(Mistake(answer=3.0, hint="That is how many values there are."),),
)
VECTOR = Exercise(question="a + b?", answer=(0.0, 2.0), hint="Add them up.", reason="They add up.", rel=0.01)


@pytest.mark.parametrize(
    ("exercise", "answer", "feedback"),
    [
        (BYTES, None, "not answered yet."),
        (BYTES, ..., "not answered yet."),
        (BYTES, 6, "right. 3 values of 2 bytes."),
        (BYTES, 3, "not yet. That is how many values there are."),
        (BYTES, 7, "not yet. Count the bytes of one value first."),
        *((BYTES, form, "not yet. The answer is one number.") for form in ("6", [6], {"bytes": 6})),
        *((VECTOR, right, "right. They add up.") for right in ([0, 2], (0.0, 2.01), torch.tensor([0.0, 2.0]))),
        *((VECTOR, wrong, "not yet. Add them up.") for wrong in ([0, 2, 0], [0, 2.1], [0])),
    ],
)
def test_an_answer_gets_the_reason_or_a_hint_that_does_not_give_it_away(exercise, answer, feedback):
    assert str(check(exercise, answer)) == feedback


def test_the_solution_is_given_to_who_asks():
    assert solution(BYTES) == "6: 3 values of 2 bytes."


@pytest.mark.parametrize(
    ("refused", "rule"),
    [
        (lambda: steps("factor", (1, 2), value=1, help=""), "help of 'factor' is empty"),
        (lambda: steps("factor", (1, 2), value=5, help="Multiplies."), "value of 'factor' is 5"),
        (lambda: choice("factor", {"one": 1, "all": None}, value=1, help="Multiplies."), "shows as blank"),
        (lambda: Explorer(lambda: 1, draw_bar), "controls is empty"),
        (lambda: explorer().set(facter=1), "control is 'facter'"),
        (lambda: replace(BYTES, mistakes=(Mistake(answer=6.0, hint="no"),)), "none must be accepted"),
    ],
)
def test_wrong_controls_and_exercises_are_refused(refused, rule):
    with pytest.raises(ValueError, match=rule):
        refused()
