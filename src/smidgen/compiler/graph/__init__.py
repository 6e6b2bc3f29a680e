"""Graphs: builder, checker, interpreter, textual form."""
