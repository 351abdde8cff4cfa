"""A discrete-event simulation of one training step: every pipeline rank and stream."""

from .simulate import Simulation, Simulator, simulate, simulated_step_s

__all__ = ["Simulation", "Simulator", "simulate", "simulated_step_s"]
