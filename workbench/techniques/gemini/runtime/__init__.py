"""Gemini on real machines: state, replicas and tiers in memory, control plane, and training that restarts."""
