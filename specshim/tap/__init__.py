"""The tap: decoder-layer outputs recorded in the forward, kept out of the KV cache."""
