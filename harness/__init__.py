"""Measurement harness for Mixture-of-Experts inference engines: cells in, verdicts out."""

__version__ = "0.1.0"
