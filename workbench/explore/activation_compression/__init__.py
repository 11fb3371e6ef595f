"""What the lesson on activation compression shows: predicted layers, recorded ranks, exercises, the break-even map."""

from .break_even import BreakEvenMap, explore_break_even
from .error_path import explore_error_path
from .exercises import break_even, code_bytes, loss_of_best_code, share_kept_by_top_k, sum_of_top_1, value_in_two_bits
from .explorer import explore_activation_compression
from .layer import Approach, LayerPrediction, break_even_bytes_per_s, predict_layer
from .ranks import RecordedReduction, partial_of, record_reduction

__all__ = [
    "Approach",
    "BreakEvenMap",
    "LayerPrediction",
    "RecordedReduction",
    "break_even",
    "break_even_bytes_per_s",
    "code_bytes",
    "explore_activation_compression",
    "explore_break_even",
    "explore_error_path",
    "loss_of_best_code",
    "partial_of",
    "predict_layer",
    "record_reduction",
    "share_kept_by_top_k",
    "sum_of_top_1",
    "value_in_two_bits",
]
