"""Training translators: their recipe, their data, their loss."""
