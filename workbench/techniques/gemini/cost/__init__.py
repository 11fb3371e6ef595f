"""What an iteration, a checkpoint and a recovery should take on the paper's machines, or on others.

Source: thesis, chapter 6 (Gemini).
Simplified, left out: see each module. Nothing here imports torch.
"""

from .calibration import CALIBRATION, Calibrated, calibrated, efficiency_from_reduction, published_value
from .checkpoint import agent_memory_bytes, checkpoint_s, peer_retrieval_s, retrieval_s, storage_s, traffic_of
from .iteration import UpdatedPhases, baseline_s, phases_of
from .machine import GeminiMachine
from .workload import Workload

__all__ = [
    "CALIBRATION",
    "Calibrated",
    "GeminiMachine",
    "UpdatedPhases",
    "Workload",
    "agent_memory_bytes",
    "baseline_s",
    "calibrated",
    "checkpoint_s",
    "efficiency_from_reduction",
    "peer_retrieval_s",
    "phases_of",
    "published_value",
    "retrieval_s",
    "storage_s",
    "traffic_of",
]
