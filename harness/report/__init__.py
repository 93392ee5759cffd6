"""Sinks for people: terminal. Reads plans, events, records and verdicts; writes to a stream."""
