"""Training language models: their recipe, their data, their loss."""
