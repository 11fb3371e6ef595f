"""Model families: one file a family, and inventories of their tensors and messages for planners."""

from workbench.models.bert import BertEncoder, BertForMaskedLM, BertForSequenceClassification
from workbench.models.bert_config import BertConfig
from workbench.models.hugging_face import LoadedWeights, load_hugging_face, to_hugging_face

__all__ = [
    "BertConfig",
    "BertEncoder",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "LoadedWeights",
    "load_hugging_face",
    "to_hugging_face",
]
