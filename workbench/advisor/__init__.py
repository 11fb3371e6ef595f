"""Which technique helps? One question to the cost models of all, beside the best plain setting and the records."""

from .advice import Advice, Advised, advise

__all__ = ["Advice", "Advised", "advise"]
