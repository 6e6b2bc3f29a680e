"""conv operations."""
