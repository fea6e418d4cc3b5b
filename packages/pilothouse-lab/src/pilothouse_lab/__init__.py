"""Compares two configurations of an agent on a set of cases: which one is better, and by how much."""
