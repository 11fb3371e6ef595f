"""Model families: one file a family, and inventories of their tensors and messages for planners."""

from workbench.models.bert import BertEncoder, BertForMaskedLM, BertForSequenceClassification
from workbench.models.bert_config import BertConfig
from workbench.models.gpt2 import GPT2, GPT2Config
from workbench.models.hugging_face import LoadedWeights, load_hugging_face, to_hugging_face
from workbench.models.inventory import layer_messages, layer_products, layer_weights
from workbench.models.vit import ViTEncoder, ViTForImageClassification
from workbench.models.vit_config import VIT_1B, VIT_3B, VIT_TINY, ViTConfig

__all__ = [
    "GPT2",
    "VIT_1B",
    "VIT_3B",
    "VIT_TINY",
    "BertConfig",
    "BertEncoder",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "GPT2Config",
    "LoadedWeights",
    "ViTConfig",
    "ViTEncoder",
    "ViTForImageClassification",
    "layer_messages",
    "layer_products",
    "layer_weights",
    "load_hugging_face",
    "to_hugging_face",
]
