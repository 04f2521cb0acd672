"""Lightning callbacks: saving, interruption, progress and early stopping."""
