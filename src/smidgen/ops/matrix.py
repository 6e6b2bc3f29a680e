"""matrix operations."""
