"""The encoded output of any module, as a forward hook.

Source: "Does compressing activations help model parallel training?", section 3.3.
Simplified: one process; between real stages the message itself is encoded, see `workbench.parallel.boundary`.
Left out: outputs that are no tensor and no tuple that begins with one.
"""

from torch import Tensor, nn

from workbench.compression import Codec

__all__ = ["CompressedOutput"]


class CompressedOutput:
    """A forward hook that hands a module's output on as decode(encode(output)).

    It shows a user's own model what its next stage would receive; the gradient follows the codec's rule.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def __call__(self, module: nn.Module, inputs: tuple, output):
        """Replace the output tensor, or the first tensor of an output tuple [..., hidden]."""
        if isinstance(output, Tensor):
            return self.codec(output)
        if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
            return (self.codec(output[0]), *output[1:])
        given = f"output of {type(module).__name__}={type(output).__name__}"
        raise ValueError(f"{given}: a tensor or a tuple that begins with one")
