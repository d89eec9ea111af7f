"""The loop: compiled blocks, progress, and the posterior they end in."""
