"""Where a rank's state can come from after a failure, fastest first.

Source: thesis, chapter 6 (Gemini), section 6.3.1.
Left out: nothing.
"""

from enum import StrEnum

__all__ = ["Tier"]


class Tier(StrEnum):
    """A place that keeps checkpoints, and beginning again where none does."""

    LOCAL = "local memory"
    PEER = "peer memory"
    STORAGE = "persistent storage"
    START = "the start"
