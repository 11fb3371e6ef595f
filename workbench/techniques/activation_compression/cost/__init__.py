"""Bytes and seconds of compressed activations in tensor- and pipeline-parallel training.

Source: "Does compressing activations help model parallel training?".
Simplified, left out: see each module.
"""

from .layer import LayerTime, layer_time
from .messages import PlannedMessages, Purpose, Setting, planned_messages

__all__ = ["LayerTime", "PlannedMessages", "Purpose", "Setting", "layer_time", "planned_messages"]
