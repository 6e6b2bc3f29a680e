"""pool operations."""
