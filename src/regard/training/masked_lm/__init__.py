"""Training BERTs to tell words that are hidden: their recipe, their data, their loss."""
