"""The control plane: the machines that are alive, the root, and the machines that train in each generation."""
