"""norm operations."""
