"""Straggler-tolerant tensor parallelism: ZERO-resizing, migration and SEMI-migration.

Paper: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control".
"""
