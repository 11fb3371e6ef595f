"""The control of the lesson's second part: which layers are compressed, and how far the loss travels."""

from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from workbench.explore.explorer import Explorer, choice, steps
from workbench.plots import figure, lines
from workbench.techniques.activation_compression.reconstruction import EncodedText, error_path

__all__ = ["ErrorPath", "explore_error_path"]

METHODS = {
    "A2: auto-encoder, untrained": "A2",
    "T1: Top-K, few elements": "T1",
    "T4: Top-K, many elements": "T4",
    "R4: Random-K": "R4",
    "Q1: 2 bits": "Q1",
    "Q2: 4 bits": "Q2",
    "Q3: 8 bits": "Q3",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorPath:
    """How far each layer's output is from the uncompressed one's."""

    rows: pd.DataFrame  # method, layer, is_compressed, lost_share


def explore_error_path(text: EncodedText) -> Explorer[ErrorPath]:
    """Return the explorer of compressed layers, for an encoder and its sentences."""
    num_layers = len(text.hidden_NH)

    def compute(*, method: str, first_layer: int, num_compressed: int) -> ErrorPath:
        if first_layer + num_compressed - 1 > num_layers:
            raise ValueError(f"{num_compressed} layers from layer {first_layer} on: the encoder has {num_layers}")
        layers = range(first_layer - 1, first_layer - 1 + num_compressed)
        return ErrorPath(rows=pd.DataFrame(error_path(text, method, layers)))

    numbers = range(1, num_layers + 1)
    return Explorer(
        compute,
        draw,
        describe=describe,
        method=choice("method", METHODS, value="T4", help="What is done to both messages of a compressed layer."),
        first_layer=steps("first layer", numbers, value=1, help="The first compressed layer."),
        num_compressed=steps("layers", numbers, value=1, help="How many layers in a row are compressed."),
    )


def describe(path: ErrorPath) -> str:
    """Say in a sentence what the figure shows."""
    layers = path.rows.loc[path.rows["is_compressed"], "layer"]
    which = f"layer {layers.iloc[0]}" if len(layers) == 1 else f"layers {layers.iloc[0]} to {layers.iloc[-1]}"
    last, lost = layers.iloc[-1], path.rows.set_index("layer")["lost_share"]
    output = f"the output of layer {last} is {lost[last]:.0%} off, the last layer's {lost.iloc[-1]:.0%}"
    return f"{path.rows['method'].iloc[0]} in {which}: {output}."


def draw(path: ErrorPath) -> Figure:
    """Draw the deviation after every layer, the compressed ones shaded."""
    drawn, ax = figure(figsize=(8, 3))
    for layer in path.rows.loc[path.rows["is_compressed"], "layer"]:
        ax.axvspan(layer - 0.5, layer + 0.5, color="0.9", zorder=0)
    lines(path.rows, ax=ax, x="layer", y="lost_share")
    ax.set(xlabel="layer (compressed ones shaded)", ylabel="share of its output lost")
    ax.set_ylim(0, max(1.0, 1.1 * path.rows["lost_share"].max()))
    ax.set_xticks(path.rows["layer"])
    return drawn
