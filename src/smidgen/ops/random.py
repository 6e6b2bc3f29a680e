"""random operations."""
