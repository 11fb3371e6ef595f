"""The lesson on activation compression: predicted layers, recorded ranks, exercises, the break-even map."""

from .break_even import CODE_SIZES, BreakEvenMap, explore_break_even
from .error_path import explore_error_path
from .exercises import (
    break_even,
    check_encoded_sum,
    check_quantised,
    code_bytes,
    loss_of_best_code,
    share_kept_by_top_k,
    sum_of_top_1,
    value_in_two_bits,
)
from .layer import (
    BITS,
    Approach,
    LayerPrediction,
    RecordedReduction,
    break_even_bytes_per_s,
    explore_activation_compression,
    partial_of,
    predict_layer,
    record_reduction,
)

__all__ = ["BITS", "CODE_SIZES", "Approach", "BreakEvenMap", "LayerPrediction", "RecordedReduction", "break_even"]
__all__ += ["break_even_bytes_per_s", "check_encoded_sum", "check_quantised", "code_bytes"]
__all__ += ["explore_activation_compression", "explore_break_even", "explore_error_path", "loss_of_best_code"]
__all__ += ["partial_of", "predict_layer", "record_reduction", "share_kept_by_top_k", "sum_of_top_1"]
__all__ += ["value_in_two_bits"]
