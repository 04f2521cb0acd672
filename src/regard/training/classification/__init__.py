"""Training BERTs to tell the class of a text: their recipe, their data, their loss."""
