"""Scores of generated texts, translations and labels."""
