"""The contestants of the speed benchmark, one file each, behind one small protocol."""
