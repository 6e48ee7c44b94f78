"""Event-driven simulation of a prefill-decode disaggregated cluster under a policy."""

from workbench.simulator.engine import simulate

__all__ = ["simulate"]
