"""Devices: their figures, one TOML file each, and how much of their RAM a program takes."""
