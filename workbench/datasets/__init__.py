"""Data sets, one file each: source, licence, splits, checksum, and a generated stand-in.

What: `glue` and `wikitext2` load rows and `cifar10` images with their source; `manifest` lists, fetches and verifies
files.
Source: see each module; licences and origins are in `data/manifest.csv`.
Simplified: rows are plain Python values, images arrays, in memory.
Left out: tokenisation, which belongs to the model that reads the text.
"""

from workbench.datasets import cifar10, glue, manifest, wikitext2
from workbench.datasets.images import ImageDataset
from workbench.datasets.source import DataError, Dataset, DataSource, SourceKind

__all__ = [
    "DataError",
    "DataSource",
    "Dataset",
    "ImageDataset",
    "SourceKind",
    "cifar10",
    "glue",
    "manifest",
    "wikitext2",
]
