"""Text to subword ids, corpora, and batches of them."""
