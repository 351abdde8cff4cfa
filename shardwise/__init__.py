"""shardwise: plans the parallel layout of a large training job."""
