"""Verbs that work on campaigns: each puts parts together that do not know each other."""
