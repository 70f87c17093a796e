"""Faults of vllm: one module each, named after the symptom."""
