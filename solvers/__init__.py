"""Exact solving of the offline problem: optima that are proven, and brackets where they are not."""

from solvers.certificate import Certificate
from solvers.search import Objective, solve

__all__ = ["Certificate", "Objective", "solve"]
