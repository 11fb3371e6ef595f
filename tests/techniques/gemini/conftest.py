"""One fleet of warm machines for all tests of the technique."""

import pytest

from workbench.launch.machines import Machines
from workbench.techniques.gemini.measured import reliability
from workbench.techniques.gemini.runtime.checkpoints import PRELOAD


@pytest.fixture(scope="session")
def fleet():
    """Machines that are started in no time, of which whoever uses them leaves none running."""
    with Machines(preload=(*PRELOAD, reliability.__name__), echo=False) as machines:
        yield machines
