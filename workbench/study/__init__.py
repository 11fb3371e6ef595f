"""What every study needs, once: rows, names of cells, timing of variants in turns, training with seeds."""
