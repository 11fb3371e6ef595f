"""Training: the loop, evaluation, and measuring.

Source: none of its own. Simplified and left out: see each module.
"""
