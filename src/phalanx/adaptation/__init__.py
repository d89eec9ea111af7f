"""Tuning during warm-up, pooled over every chain on every device."""
