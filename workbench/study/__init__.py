"""The common part of all studies: rows, names of cells, timing of variants in turns, training with seeds."""
