import pytest

from workbench import plots
from workbench.explore import Explorer, choice, steps


def draw_bar(result):
    figure, ax = plots.figure()
    ax.bar(["result"], [result])
    return figure


def explorer(compute=lambda factor, base: factor * base, **options):
    return Explorer(
        compute,
        draw_bar,
        describe=lambda result: f"the product is {result}",
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


def test_moving_a_control_computes_and_draws_another_figure():
    moved = explorer()
    before = moved.png
    moved.set(factor=3)
    assert moved.result == 30
    assert moved.png != before


def test_a_result_is_computed_once_however_often_the_controls_return_to_it():
    computed = []
    moved = explorer(lambda factor, base: computed.append((factor, base)) or factor * base)
    moved.set(factor=3).set(factor=2).set(factor=3)
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


def test_help_labels_and_stable_classes_are_in_the_widgets():
    rows = explorer().widget.children
    slider, help_text = rows[0].children
    assert (slider.description, slider.tooltip, slider._dom_classes) == (
        "factor",
        "Multiplies.",
        ("workbench-control-factor",),
    )
    assert help_text.value == "<small>Multiplies.</small>"
    assert [row._dom_classes for row in rows[-2:]] == [("workbench-status",), ("workbench-figure",)]
    assert 'alt="the product is 20"' in rows[-1].value


def test_where_widgets_cannot_be_shown_the_figure_is():
    bundle = explorer()._repr_mimebundle_()
    assert {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"} <= set(bundle)


def test_a_control_without_help_is_refused():
    with pytest.raises(ValueError, match="help of 'factor' is empty"):
        steps("factor", (1, 2), value=1, help="")


def test_a_first_value_that_is_no_option_is_refused():
    with pytest.raises(ValueError, match="value of 'factor' is 5"):
        steps("factor", (1, 2), value=5, help="Multiplies.")


def test_an_explorer_without_controls_is_refused():
    with pytest.raises(ValueError, match="controls is empty"):
        Explorer(lambda: 1, draw_bar)


def test_an_unknown_control_is_named():
    with pytest.raises(ValueError, match="control is 'facter'"):
        explorer().set(facter=1)
