"""reduce operations."""
