"""A long fit under way: held-out rows, checkpoints, logs, and data that come in batches."""
