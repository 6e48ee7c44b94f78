"""Scheduling policies: the contract, the built-in ones, and how to find them by name."""

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from workbench.errors import InputError
from workbench.policies.base import Assignment, Policy, Ranking, Stage

__all__ = ["PAPER_POLICIES", "Assignment", "Policy", "Ranking", "Stage", "available", "create", "parameters"]

PAPER_POLICIES = ("fcfs", "workflow-fcfs", "llf", "atlas", "hexagent")
"""The policies that the paper compares (sections 3 and 7.2)."""

# Magnitude of every fractional parameter of a policy; beyond, keys overflow or lose what tells calls apart.
SMALLEST, LARGEST = 1e-12, 1e12

_CONTRACT = ("base", "dispatch", "queueing")


def available() -> dict[str, type[Policy]]:
    """Return the built-in policies by name: one class for each module of this package, in alphabetical order."""
    return {policy.name: policy for policy in _discover()}


def create(policy: "str | Policy | type[Policy]", **options: Any) -> Policy:
    """Return a policy from its name, its class or itself.

    Parameters
    ----------
    policy : str, Policy or type
        Name of a built-in policy, with parameters if wanted (``llf:alpha=3:dispatch=random``), a policy class, or a
        policy.
    **options
        Parameters of the policy, where a name or class is given.

    Raises
    ------
    InputError
        On an unknown name, an unknown parameter, a value that the policy refuses, or parameters for a made policy.

    Examples
    --------
    >>> create("llf:alpha=3").alpha
    3.0
    """
    if isinstance(policy, str):
        known = available()
        name, *settings = policy.split(":")
        if name not in known:
            raise InputError(f"unknown policy '{name}' (known: {', '.join(known)})")
        policy = known[name]
        options = _parsed(policy, settings) | options
    if not isinstance(policy, type):
        if options:
            raise InputError(f"policy '{policy.name}' is already made; set {', '.join(options)} where it is")
        return policy
    unknown = set(options) - set(parameters(policy))
    if unknown:
        raise InputError(
            f"policy '{policy.name}' has no parameter {', '.join(sorted(unknown))} "
            f"(known: {', '.join(parameters(policy)) or 'none'})"
        )
    try:
        made = policy(**options)
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error).removeprefix(f"{policy.name}: ")
        raise InputError(f"policy '{policy.name}': {reason}") from None
    for name, value in options.items():
        if isinstance(value, float) and value != 0 and not SMALLEST <= abs(value) <= LARGEST:
            raise InputError(
                f"policy '{policy.name}': {name} must be 0 or from {SMALLEST:g} to {LARGEST:g}, got {value}"
            )
    return made


def parameters(policy: type[Policy]) -> dict[str, Any]:
    """Return the parameters of a policy class with their defaults."""
    if policy.__init__ is object.__init__:
        return {}
    found = inspect.signature(policy).parameters.values()
    return {p.name: p.default for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _parsed(policy: type[Policy], settings: list[str]) -> dict[str, Any]:
    """Return ``name=value`` settings as values of the types of the policy's defaults."""
    defaults = parameters(policy)
    options: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        kind = type(defaults.get(name, ""))
        try:
            options[name] = kind(text) if equals else None
        except ValueError:
            equals = ""
        if not equals:
            raise InputError(f"policy '{policy.name}': expected {name or 'parameter'}={kind.__name__}, got '{setting}'")
    return options


def _discover() -> Iterator[type[Policy]]:
    for module in sorted(info.name for info in iter_modules(__path__)):
        if module in _CONTRACT:
            continue
        contents = vars(import_module(f"{__name__}.{module}"))
        yield from (contents[name] for name in contents["__all__"])
