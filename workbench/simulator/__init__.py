"""Event-driven simulation of a prefill-decode disaggregated cluster under a policy."""

from workbench.simulator.engine import simulate
from workbench.simulator.latency import PlanLatency

__all__ = ["PlanLatency", "simulate"]
