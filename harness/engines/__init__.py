"""What a program's command line and output mean."""
