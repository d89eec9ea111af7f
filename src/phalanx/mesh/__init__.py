"""The only package that knows there is more than one device."""
