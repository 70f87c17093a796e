"""Collect hidden states, compare them with a reference, say what is off."""
