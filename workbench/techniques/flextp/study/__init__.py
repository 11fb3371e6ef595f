"""What the items run: accuracy on virtual ranks, epochs on real ones."""
