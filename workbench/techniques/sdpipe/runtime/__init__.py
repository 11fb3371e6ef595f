"""SDPipe and its rivals on real ranks, the scheduler's process, and a user's own pipeline."""
