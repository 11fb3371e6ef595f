"""A research workbench for distributed deep-learning systems: eight techniques on real ranks."""


def load_ipython_extension(shell: object) -> None:
    """Add `%%ranks`, `%%rank` and `%workbench` to a notebook, for `%load_ext workbench`."""
    from workbench.notebook import load

    load(shell)
