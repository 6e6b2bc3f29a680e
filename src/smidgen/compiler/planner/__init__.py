"""Making a program fit: what to keep, what to recompute, at which cost."""
