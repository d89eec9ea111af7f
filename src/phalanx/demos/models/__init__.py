"""Models of the demos that fill a file of their own: programs and networks without a run."""
