"""Pictures of all lessons' controls: no word leaves them, and no legend lies on what is drawn."""

import sys

import pytest

from workbench.explore import activation_compression, atp, cupcake, espresso, flextp, gemini, sdpipe, zen
from workbench.techniques.flextp.cost import Solution
from workbench.techniques.gemini.method.interleaving import Scheme

LONGEST = "GPU, Alltoall/Allgather"
SETTINGS = [  # each explorer, and the settings with the longest words or the most to show
    (activation_compression.explore_activation_compression, {"approach": activation_compression.Approach.NONE}),
    (activation_compression.explore_break_even, {"bandwidth_bytes_per_s": 1e7, "fused": True}),
    (cupcake.FusionExplorer, {"cut_0": False, "send_mb": 2}),
    (espresso.explore_strategy, {"t0": LONGEST, "t1": LONGEST, "gbit": 10, "inside_gbit": 16}),
    (espresso.explore_search, {"number": 5}),
    (flextp.explore_flextp, {"choice": flextp.Choice(solution=Solution.ZERO), "pruning_ratio": 0.75}),
    (gemini.explore_placement, {"num_machines": 16, "num_replicas": 4, "failed": (0, 1, 2, 3, 4, 5, 6, 7)}),
    (gemini.explore_failures, {"num_machines": 4096, "solution": "HighFreq", "num_replicas": 1}),
    (gemini.explore_interleaving, {"scheme": Scheme.NAIVE, "link": 400, "num_replicas": 3}),
    (sdpipe.explore_candidates, {"members": (0, 1, 2, 3)}),
    (sdpipe.explore_scheduler, {"history": 10, "window": 3.0, "late": 4}),
    (zen.SlotExplorer, {"indices": 32, "slots": 63, "serial": 12}),
    (atp.MeshExplorer, {"exactly": True, "startup": 500, "between": 1}),
]


def spilled(figure) -> list[float]:
    """Inches by which what is drawn leaves the figure: left, below, right, above."""
    drawn = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    return [max(0.0, inches) for inches in (-drawn.x0, -drawn.y0, drawn.x1 - width, drawn.y1 - height)]


def covered(figure) -> list[str]:
    """Titles of axes on whose drawing area their legend lies."""
    legends = [(ax, ax.get_legend().get_window_extent()) for ax in figure.axes if ax.get_legend()]
    return [ax.get_title(loc="left") for ax, legend in legends if legend.padded(-2).overlaps(ax.bbox)]


@pytest.mark.parametrize(("explore", "settings"), SETTINGS, ids=lambda value: getattr(value, "__name__", ""))
def test_no_word_leaves_a_picture_and_no_legend_lies_on_its_lines(explore, settings, monkeypatch):
    module, seen = sys.modules["workbench.explore.explorer"], []
    save = module._saved
    monkeypatch.setattr(module, "_saved", lambda figure, format: seen.append(figure) or save(figure, format))
    explore().set(**settings)
    for figure in seen:
        assert max(spilled(figure)) < 0.02, spilled(figure)
        assert covered(figure) == []
