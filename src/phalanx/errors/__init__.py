"""Errors told of the user's code: where in it, of which variable, and what to write instead."""
