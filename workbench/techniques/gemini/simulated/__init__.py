"""Rows of the simulated items: `checkpoints` and idle spans, `failures`, and single `recoveries`."""
