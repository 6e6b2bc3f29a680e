"""optim operations."""
