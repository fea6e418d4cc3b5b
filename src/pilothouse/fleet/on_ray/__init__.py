"""Attempts in actors of a Ray cluster."""
