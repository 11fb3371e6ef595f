"""ZERO-resizing, migration and SEMI-migration on plain tensors and numbers; knows nothing of processes."""
