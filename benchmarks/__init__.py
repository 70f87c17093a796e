"""What the tap costs, measured: ``python -m benchmarks.throughput`` (see its help)."""
