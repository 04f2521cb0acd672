"""Tokenized datasets and their batches."""
