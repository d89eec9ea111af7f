"""Programs and networks of the larger demos, without their runs; the demo of the same subject runs them."""
