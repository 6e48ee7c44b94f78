"""Dispatchers: which instances a call is sent to when it is revealed, before its prefill.

Each chooses prefill and decode instance independently of one another and looks at no estimate of time, as the routers
of serving systems do. Only decode instances whose KV capacity holds the call's predicted demand are considered.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.view import View

__all__ = ["DISPATCH_RULES", "Dispatcher", "Load"]

IMBALANCE_CALLS = 32
IMBALANCE_RATIO = 1.1
SHORT_CALL_TOKENS = 2048


@dataclass
class Load:
    """Outstanding work of one pool, the calls of the present plan included.

    Attributes
    ----------
    tokens, calls : list of int
        By instance.
    used : sequence of int
        Instance of every revealed call, -1 where there is none.
    sent : list of int
        How many calls were sent to each instance since the run began.
    capacity_tokens : sequence of int
        KV capacity by instance; empty for the prefill pool, which has none.
    """

    tokens: list[int]
    calls: list[int]
    used: Sequence[int]
    sent: list[int]
    capacity_tokens: Sequence[int] = ()

    def send(self, instance: int, tokens: int) -> int:
        """Count a call to an instance and return the instance."""
        self.tokens[instance] += tokens
        self.calls[instance] += 1
        self.sent[instance] += 1
        return instance


class Dispatcher:
    """Sends calls to instances by one of `DISPATCH_RULES`.

    Parameters
    ----------
    rule : str
        Name of the rule.

    Raises
    ------
    ValueError
        If there is no such rule.
    """

    def __init__(self, rule: str) -> None:
        if rule not in DISPATCH_RULES:
            raise ValueError(f"unknown dispatch '{rule}' (known: {', '.join(DISPATCH_RULES)})")
        self.rule = rule

    def begin(self, view: View, rng: random.Random) -> None:
        """Start a run."""
        self.rng = rng
        self._capacity = view.capacity_tokens.tolist()
        self._prefill = Load([], [], view.prefill_instance, [0] * len(view.prefill_class))
        capacity_tokens: list[int] = view.capacity_tokens.tolist()
        self._decode = Load([], [], view.decode_instance, [0] * len(view.decode_class), capacity_tokens)

    def refresh(self, view: View) -> None:
        """Start a plan: take the loads from the view."""
        self._prefill.tokens, self._prefill.calls = view.prefill_tokens.copy(), view.prefill_calls.copy()
        self._decode.tokens, self._decode.calls = view.decode_tokens.copy(), view.decode_calls.copy()

    def choose(self, view: View, call: int) -> tuple[int, int]:
        """Return the prefill and the decode instance of a call, and count it there."""
        rule = DISPATCH_RULES[self.rule]
        demand = int(view.demand_tokens[call])
        fitting = [d for d, capacity in enumerate(self._capacity) if demand <= capacity]
        p = rule(self, view, call, range(len(view.prefill_class)), self._prefill)
        d = rule(self, view, call, fitting, self._decode)
        return self._prefill.send(p, view.new_tokens[call]), self._decode.send(d, demand)


def round_robin(dispatcher: Dispatcher, view: View, call: int, among: Sequence[int], load: Load) -> int:
    """Take turns."""
    return among[sum(load.sent) % len(among)]


def uniform(dispatcher: Dispatcher, view: View, call: int, among: Sequence[int], load: Load) -> int:
    """Draw uniformly."""
    return dispatcher.rng.choice(among)


def power_of_two(dispatcher: Dispatcher, view: View, call: int, among: Sequence[int], load: Load) -> int:
    """Draw two instances and take the one with fewer outstanding tokens (the SGLang router's rule)."""
    drawn = dispatcher.rng.sample(among, min(2, len(among)))
    return least_loaded(dispatcher, view, call, drawn, load)


def least_loaded(dispatcher: Dispatcher, view: View, call: int, among: Sequence[int], load: Load) -> int:
    """Take the instance with the fewest outstanding tokens; among equals, the one that was sent the fewest calls."""
    return min(among, key=lambda i: (load.tokens[i], load.sent[i], i))


def cache_aware(dispatcher: Dispatcher, view: View, call: int, among: Sequence[int], load: Load) -> int:
    """Follow the first parent, to where its cache would be, unless the pool is out of balance (SGLang router).

    Out of balance: the busiest instance has over 32 calls more, and over 1.1 times those of, the idlest.
    """
    calls = [load.calls[i] for i in among]
    unbalanced = max(calls) - min(calls) > IMBALANCE_CALLS and max(calls) > IMBALANCE_RATIO * min(calls)
    home = _home(view, call, load)
    return home if home in among and not unbalanced else least_loaded(dispatcher, view, call, among, load)


def pinned(dispatcher: Dispatcher, view: View, call: int, among: Sequence[int], load: Load) -> int:
    """Send short calls to the least loaded instance and long ones where the first parent went (Autellix)."""
    home = _home(view, call, load)
    if home in among and view.input_tokens[call] > SHORT_CALL_TOKENS:
        return home
    return least_loaded(dispatcher, view, call, among, load)


def sticky(dispatcher: Dispatcher, view: View, call: int, among: Sequence[int], load: Load) -> int:
    """Stay where the first parent went, to where its KV is kept, whatever the loads (Continuum)."""
    home = _home(view, call, load)
    return home if home in among else least_loaded(dispatcher, view, call, among, load)


def fewest_calls(dispatcher: Dispatcher, view: View, call: int, among: Sequence[int], load: Load) -> int:
    """Take the instance with the fewest calls in progress plus queued; among equals, the one sent the fewest.

    DistServe's rule for both pools.
    """
    return min(among, key=lambda i: (load.calls[i], load.sent[i], i))


def most_free(dispatcher: Dispatcher, view: View, call: int, among: Sequence[int], load: Load) -> int:
    """Take the decode instance with the most free KV tokens a call, and the least loaded prefill instance (Llumnix).

    The calls that are on their way to a decode instance count, so that what is free may be negative.
    """
    if not load.capacity_tokens:
        return least_loaded(dispatcher, view, call, among, load)

    def used(i: int) -> tuple[float, int, int]:
        free = (load.capacity_tokens[i] - load.tokens[i]) / max(1, load.calls[i])
        return -free, load.sent[i], i

    return min(among, key=used)


def _home(view: View, call: int, load: Load) -> int:
    parents = view.parents[call]
    return load.used[parents[0][0]] if parents else -1


Rule = Callable[[Dispatcher, View, int, Sequence[int], Load], int]

DISPATCH_RULES: dict[str, Rule] = {
    "power_of_two": power_of_two,
    "round_robin": round_robin,
    "random": uniform,
    "least_loaded": least_loaded,
    "cache_aware": cache_aware,
    "pinned": pinned,
    "sticky": sticky,
    "fewest_calls": fewest_calls,
    "most_free": most_free,
}
