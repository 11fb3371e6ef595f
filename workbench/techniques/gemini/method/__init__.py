"""Placement, probabilities, interleaving, waste and recovery on plain numbers; knows nothing of processes."""

from .interleaving import *  # noqa: F403
from .placement import *  # noqa: F403
from .recovery import *  # noqa: F403
from .waste import *  # noqa: F403
