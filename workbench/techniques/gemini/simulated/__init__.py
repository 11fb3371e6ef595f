"""Rows of the simulated items: `checkpoints` and idle spans, `failures`, single `recoveries`, `replay` of diaries."""
