"""What attention weights say: recordings of them, and what follows from these."""
