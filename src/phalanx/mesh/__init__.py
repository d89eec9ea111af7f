"""The only rooms that know there is more than one device."""
