"""Random tiny instances whose times are whole seconds, for comparison with the brute force."""

import numpy as np

from workbench import CompiledInstance


def tiny_instance(seed: int) -> CompiledInstance:
    """Return 2 to 4 calls in 1 to 3 workflows on up to three classes a pool, often with tight KV and tool delays."""
    rng = np.random.default_rng(seed)
    calls = int(rng.integers(2, 5))
    workflows = int(rng.integers(1, min(3, calls) + 1))
    cuts = np.sort(rng.choice(np.arange(1, calls), workflows - 1, replace=False))
    first = [0, *cuts.tolist(), calls]
    parents: list[list[int]] = []
    for w in range(workflows):
        for c in range(first[w], first[w + 1]):
            parents.append([p for p in range(first[w], c) if rng.random() < 0.6])
    prefill_class = rng.permutation(3)[: rng.integers(1, 4)] if calls < 4 else rng.integers(0, 3, 2)
    decode_class = rng.permutation(3)[: rng.integers(1, 4)] if calls < 4 else rng.integers(0, 3, 2)
    demand = rng.integers(2, 8, calls)
    capacity = rng.integers(4, 14, len(decode_class))
    capacity[rng.integers(len(capacity))] = max(demand.max(), capacity.max())
    return CompiledInstance.from_durations(
        first_call=first,
        prefill_s=rng.integers(1, 7, (calls, 3)),
        decode_s=rng.integers(1, 9, (calls, 3)),
        transfer_s=rng.integers(0, 4, (calls, 3, 3)),
        demand_tokens=demand,
        arrival_s=np.sort(rng.integers(0, 6, workflows)),
        parents=parents,
        tool_delay_s=[[float(rng.integers(0, 4)) for _ in row] for row in parents],
        prefill_class=prefill_class,
        decode_class=decode_class,
        capacity_tokens=capacity,
        name=f"tiny-{seed}",
    )
