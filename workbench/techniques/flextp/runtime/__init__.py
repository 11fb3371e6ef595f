"""Resizing and migration on real and virtual ranks."""
