"""Placement: offsets of all values in the arena, by their lifetimes."""
