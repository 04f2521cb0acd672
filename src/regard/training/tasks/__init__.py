"""The tasks: for each its recipe, and the class that makes its tokenizer, data, model, loss and metrics."""
