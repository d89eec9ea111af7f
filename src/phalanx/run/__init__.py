"""The loop: compiled blocks, sinks for what they draw, warm-up, progress."""
