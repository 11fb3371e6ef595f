"""The layers of a model that are compressed: by name, or counted in the model's one stack of blocks."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import groupby

from torch import nn

__all__ = ["CODEC_NAMES", "Layers", "chosen_layers"]

CODEC_NAMES = ("output_codec", "sequence_codec")  # sub-modules that layers with a compressed output get
MOST_NAMED = 8  # modules that an error lists

Layers = int | str | Iterable[int] | Iterable[str] | None
NamedModules = list[tuple[str, nn.Module]]


def chosen_layers(model: nn.Module, layers: Layers) -> NamedModules:
    """Return the chosen layers of a model, each with its name, or refuse them by the names of the modules there are."""
    if layers is None or isinstance(layers, int):
        blocks = _blocks(model, layers)
        count = -(-len(blocks) // 2) if layers is None else layers
        if not 1 <= count <= len(blocks):
            rule = f"it must be in 1..{len(blocks)}, the blocks {_range(blocks)}; or name modules"
            raise ValueError(f"layers is {layers}; {rule}")
        return blocks[len(blocks) - count :]
    asked: list[int | str] = [layers] if isinstance(layers, str) else list(layers)
    if not asked:
        raise ValueError("layers is empty; it must hold at least one layer")
    modules = dict(model.named_modules())
    blocks = [] if all(isinstance(layer, str) for layer in asked) else _blocks(model, asked)
    for layer in asked:
        if isinstance(layer, str) and layer not in modules:
            near = get_close_matches(layer, modules, cutoff=0.3) or _examples(modules.items())
            raise ValueError(f"layers has {layer!r}; it must name modules of the model, such as {near}")
        if not isinstance(layer, str) and not 0 <= layer < len(blocks):
            raise ValueError(f"layers has {layer}; it must be in 0..{len(blocks) - 1}, the blocks {_range(blocks)}")
    return [(layer, modules[layer]) if isinstance(layer, str) else blocks[layer] for layer in asked]


def _blocks(model: nn.Module, layers: object) -> NamedModules:
    """Return the model's one stack of blocks; ValueError that asks for names if it has none, or several."""
    stacks = list(_stacks("", model))
    stacks = [stack for stack in stacks if any(True for _ in stack[0][1].children())] or stacks  # not lists of linears
    if len(stacks) == 1:
        return stacks[0]
    if stacks:
        held = f"{len(stacks)} stacks of blocks ({'; '.join(map(_range, stacks))})"
        example = f"layers={[name for name, _ in stacks[-1][-2:]]}"
    else:
        held, example = "no stack of equal blocks", f"layers={_examples(model.named_modules())} or some of them"
    rule = f"{type(model).__name__} has {held}, so name the layers whose outputs are to be compressed"
    raise ValueError(f"layers is {layers}; {rule}: {example}")


def _stacks(name: str, module: nn.Module) -> Iterator[NamedModules]:
    """Yield the outermost stacks: lists whose modules are all blocks of one kind, and such a run in a Sequential."""
    children = [(f"{name}.{child}" if name else child, part) for child, part in module.named_children()]
    if isinstance(module, nn.ModuleList | nn.Sequential):
        runs = [list(run) for kind, run in groupby(children, lambda child: _kind(child[1])) if kind is not None]
        longest = max(runs, key=len, default=[])
        is_whole = len(longest) == len(children) > 0
        if len(longest) > 1 if isinstance(module, nn.Sequential) else is_whole:
            yield longest
            return
    for child, part in children:
        yield from _stacks(child, part)


def _kind(module: nn.Module) -> object:
    """Tell kinds of blocks apart; None for no block, such as a ReLU, a norm, or a linear that changes the width.

    Blocks of a class that is not torch's may differ in shapes: T5's first one has a bias that the others lack.
    """
    parameters = [(name, tuple(weight.shape)) for name, weight in module.named_parameters()]
    shapes = tuple((name, shape) for name, shape in parameters if not set(CODEC_NAMES) & set(name.split(".")))
    is_torchs = type(module).__module__.startswith("torch.nn.")
    if not any(True for name, _ in module.named_children() if name not in CODEC_NAMES):
        matrices = [shape for _, shape in shapes if len(shape) > 1]
        if not matrices or (is_torchs and any(shape[0] != shape[1] for shape in matrices)):
            return None
    return (type(module), shapes) if is_torchs else type(module)


def _range(blocks: NamedModules) -> str:
    """Describe blocks: the first and the last name, and their class."""
    names = blocks[0][0] if len(blocks) == 1 else f"{blocks[0][0]} to {blocks[-1][0]}"
    return f"{names} ({type(blocks[0][1]).__name__})"


def _examples(modules: Iterable[tuple[str, nn.Module]]) -> str:
    """List the first modules that have a weight matrix themselves."""
    names = [name for name, module in modules if name and any(w.ndim > 1 for w in module.parameters(recurse=False))]
    more = ", ..." if len(names) > MOST_NAMED else ""
    return f"[{', '.join(map(repr, names[:MOST_NAMED]))}{more}]"
