"""The search for a program within a limit: recompute, page, micro-batches, several plans."""
