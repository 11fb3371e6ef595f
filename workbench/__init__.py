"""A research workbench for distributed deep-learning systems: eight techniques on real ranks."""
