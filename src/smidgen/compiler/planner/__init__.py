"""Making a program fit: what to keep, what to compute again, at which price."""
