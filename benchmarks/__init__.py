"""Networks and measurements. Not part of the installed package."""
