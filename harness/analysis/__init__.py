"""Cell records in, verdicts out. Pure: no I/O, no clock, no target, no MLflow."""
