"""Scores of predictions on held-out rows, as the demos print them."""
