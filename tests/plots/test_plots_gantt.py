import pytest

from workbench import plots
from workbench.plots.style import KIND_COLOR, KIND_HATCH
from workbench.timeline import Action, Kind, Timeline

TIMELINE = Timeline(
    actions=(
        Action(resource="rank 0", start_s=0.0, end_s=0.002, kind=Kind.COMPUTE, label="attention"),
        Action(resource="link", start_s=0.002, end_s=0.005, kind=Kind.COMMUNICATE, label="sum"),
    )
)


def test_an_action_is_a_bar_from_its_start_to_its_end_in_the_row_of_its_resource():
    ax = plots.gantt(TIMELINE)
    spans = [(bar.get_x(), bar.get_width(), bar.get_y() + bar.get_height() / 2) for bar in ax.patches]
    assert spans == [pytest.approx((0, 2, 0)), pytest.approx((2, 3, 1))]
    assert ax.get_xlabel() == "time (ms)"
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["rank 0", "link"]


def test_the_first_resource_is_the_top_row():
    bottom, top = plots.gantt(TIMELINE).get_ylim()
    assert bottom > top


def test_the_time_axis_can_be_that_of_another_figure():
    assert plots.gantt(TIMELINE, end_s=0.01).get_xlim() == pytest.approx((0, 10))


def test_a_label_that_does_not_fit_its_bar_is_left_out():
    actions = (
        Action(resource="rank 0", start_s=0, end_s=0.01, label="a-very-long-label"),
        Action(resource="rank 0", start_s=0.01, end_s=1.0, label="fits"),
    )
    assert [text.get_text() for text in plots.gantt(Timeline(actions=actions)).texts] == ["fits"]


def test_the_legend_names_the_kinds_that_are_drawn():
    assert [text.get_text() for text in plots.gantt(TIMELINE).get_legend().get_texts()] == ["compute", "communicate"]
    assert plots.gantt(TIMELINE, legend=False).get_legend() is None


def test_timelines_under_each_other_share_one_scale_and_one_legend():
    longer = Timeline(actions=(Action(resource="rank 0", start_s=0, end_s=0.02),))
    above, below = plots.gantts({"plain": TIMELINE, "longer": longer}, figsize=(8, 4))
    assert above.get_xlim() == below.get_xlim() == pytest.approx((0, 20))
    assert above.get_legend() is None and below.get_legend() is not None
    assert [ax.get_title(loc="left") for ax in (above, below)] == ["plain", "longer"]


def test_a_legend_can_say_what_the_kinds_stand_for():
    figure, _ = plots.figure()
    plots.kind_legend(figure, {"training": Kind.COMPUTE, "checkpoint": Kind.COMMUNICATE})
    patches = figure.legends[0].get_patches()
    assert [patch.get_label() for patch in patches] == ["training", "checkpoint"]
    assert patches[1].get_hatch() == KIND_HATCH[Kind.COMMUNICATE]


def test_every_kind_has_a_colour_and_those_of_a_compressed_layer_differ_in_both_colour_and_hatch():
    assert set(KIND_COLOR) == set(KIND_HATCH) == set(Kind)
    layer = (Kind.COMPUTE, Kind.ENCODE, Kind.COMMUNICATE, Kind.DECODE)
    assert len({KIND_COLOR[kind] for kind in layer}) == len({KIND_HATCH[kind] for kind in layer}) == 4
