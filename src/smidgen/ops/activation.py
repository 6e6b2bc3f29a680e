"""activation operations."""
