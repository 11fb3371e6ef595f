"""Model families: one file a family, and inventories of their tensors and messages for planners."""

from workbench.models.bert import BertEncoder, BertForMaskedLM, BertForSequenceClassification
from workbench.models.bert_config import BertConfig
from workbench.models.hugging_face import LoadedWeights, load_hugging_face, to_hugging_face
from workbench.models.inventory import layer_messages, layer_weights

__all__ = [
    "BertConfig",
    "BertEncoder",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "LoadedWeights",
    "layer_messages",
    "layer_weights",
    "load_hugging_face",
    "to_hugging_face",
]
