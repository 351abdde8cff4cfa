"""Accelerators, network tiers and topologies; the shipped profiles; measured curves and their fits."""
