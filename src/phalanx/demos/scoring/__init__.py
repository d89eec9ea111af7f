"""Scores of predictions on test rows or hidden entries, as the demos print them."""
