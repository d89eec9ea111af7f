"""Inverse mass matrices: diagonal with a low-rank correction as warm-up adapts them, or given by the user."""
