import matplotlib
import pytest
from matplotlib import pyplot

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    pyplot.close("all")
