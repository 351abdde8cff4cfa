"""Model, workload, runtime and strategy in; FLOPs, bytes, memory, traffic and seconds out."""
