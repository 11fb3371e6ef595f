"""What the plot of singular values draws."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from workbench.plots.singular_values import singular_values


@pytest.fixture
def ax():
    """Axes of a figure that no window or state knows."""
    return Figure().subplots()


def test_a_line_starts_at_the_origin_and_is_the_mean_over_seeds(ax):
    singular_values({"activation": [[0.6, 1.0], [0.8, 1.0]]}, ax=ax)
    line = next(line for line in ax.lines if line.get_label() == "activation")
    np.testing.assert_allclose(line.get_xydata(), [[0, 0], [0.5, 0.7], [1, 1]])


def test_several_seeds_have_a_band_and_one_has_none(ax):
    singular_values({"one": [[0.5, 1.0]], "two": [[0.6, 1.0], [0.8, 1.0]]}, ax=ax)
    assert len(ax.collections) == 1
    band = ax.collections[0].get_paths()[0].vertices
    middle = band[np.isclose(band[:, 0], 0.5), 1]
    assert (middle.min(), middle.max()) == pytest.approx((0.6, 0.8))


def test_the_diagonal_is_drawn_and_named(ax):
    singular_values({"one": [[0.5, 1.0]]}, ax=ax)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "all values equal"]


def test_a_curve_without_seeds_is_refused_by_name(ax):
    with pytest.raises(ValueError, match=r"curves\['one'\] has shape \(2,\)"):
        singular_values({"one": [0.5, 1.0]}, ax=ax)
