"""Model families: one file a family, and the inventory of their products, tensors and messages for planners."""

import importlib

_HOMES = {
    "GPT2": "gpt2",
    "VIT_1B": "vit",
    "VIT_3B": "vit",
    "VIT_TINY": "vit",
    "BertConfig": "bert",
    "BertEncoder": "bert",
    "BertForMaskedLM": "bert",
    "BertForSequenceClassification": "bert",
    "Cut": "inventory",
    "GPT2Config": "gpt2",
    "Linear": "inventory",
    "LoadedWeights": "hugging_face",
    "Message": "inventory",
    "Tensor": "inventory",
    "ViTConfig": "vit",
    "ViTEncoder": "vit",
    "ViTForImageClassification": "vit",
    "Workload": "inventory",
    "load_hugging_face": "hugging_face",
    "to_hugging_face": "hugging_face",
}

__all__ = [*_HOMES]


def __getattr__(name: str):
    # Lazy, so that cost models use the inventory without importing torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
