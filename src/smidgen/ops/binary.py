"""binary operations."""
