"""movement operations."""
