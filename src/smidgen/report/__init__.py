"""What people read: plans as text, JSON and HTML, programs, error pages, comparison with PyTorch."""
