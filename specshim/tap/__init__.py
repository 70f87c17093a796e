"""The tap: decoder-layer outputs recorded in the forward, streamed past the KV cache."""
