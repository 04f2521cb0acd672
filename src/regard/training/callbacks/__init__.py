"""What happens between the steps of a training."""
