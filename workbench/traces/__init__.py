"""Workloads: real workflows, and readers of files that hold them."""

from workbench.traces.lengths import read_lengths
from workbench.traces.real import bfcl

__all__ = ["bfcl", "read_lengths"]
