"""Model families: one file a family, and the inventory of their products for planners."""

import importlib

_NAMES_OF = {
    "bert": "BertConfig BertEncoder BertForMaskedLM BertForSequenceClassification",
    "gpt2": "GPT2 GPT2Config",
    "hugging_face": "LoadedWeights load_hugging_face to_hugging_face",
    "inventory": "Cut Linear Workload",
    "vit": "VIT_1B VIT_3B VIT_TINY ViTConfig ViTEncoder ViTForImageClassification",
}
_HOMES = {name: home for home, names in _NAMES_OF.items() for name in names.split()}

__all__ = [*_HOMES]


def __getattr__(name: str):
    # Lazy, so that cost models use the inventory without importing torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
