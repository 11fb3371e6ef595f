"""Zen and its rivals on real ranks."""
