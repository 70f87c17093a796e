"""Faults of speculators: one module each, named after the symptom."""
