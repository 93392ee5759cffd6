"""Where cells run. A target puts, gets and runs; it knows nothing of experiments."""
