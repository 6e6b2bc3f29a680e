"""Rewrites of graphs: plain functions Graph → Graph, each checked after it ran."""
