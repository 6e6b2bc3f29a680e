"""loss operations."""
