"""`smidgen demo`: a network that goes on learning in 64 KB of RAM."""
