"""Firmware for microcontrollers: a program as a C project, its RAM to the byte, and training on an emulated board."""
