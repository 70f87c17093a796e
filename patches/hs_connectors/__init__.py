"""Faults of hs_connectors: one module each, named after the symptom."""
