"""Data sets, one file each, with source, licence, splits, checksum and a generated stand-in; see data/manifest.csv."""

from workbench.datasets import cifar10, glue, manifest, wikitext2
from workbench.datasets.source import DataError, Dataset, DataSource, ImageDataset, SourceKind

__all__ = ["DataError", "DataSource", "Dataset", "ImageDataset", "SourceKind", "cifar10", "glue", "manifest"]
__all__ += ["wikitext2"]
