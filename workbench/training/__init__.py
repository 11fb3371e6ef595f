"""The training loop, its batches, measures and precision; measuring of times."""
