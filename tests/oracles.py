"""Plain transcriptions of the model that the tests compare with: no arrays, no increments, every pair enumerated."""

from workbench.policies import Assignment, Stage
from workbench.view import Phase


class Occupancy:
    """KV tokens held over time on each decode instance, as a list of (start, end, tokens)."""

    def __init__(self, capacity):
        self.capacity = list(capacity)
        self.intervals = [[] for _ in self.capacity]

    def level(self, d, time):
        """Return the tokens held at a time."""
        return sum(tokens for start, end, tokens in self.intervals[d] if start <= time < end)

    def earliest(self, d, ready, duration, demand):
        """Return the first time from ``ready`` on at which the demand fits for the whole duration."""
        room = max(0, self.capacity[d] - demand)
        for start in sorted({ready} | {end for _, end, _ in self.intervals[d] if end > ready}):
            changes = [begin for begin, _, _ in self.intervals[d] if start < begin < start + duration]
            if all(self.level(d, time) <= room for time in [start, *changes]):
                return start
        raise AssertionError("every interval ends")

    def hold(self, d, start, end, tokens):
        """Hold tokens for a while."""
        self.intervals[d].append((start, end, tokens))


def best_pair(ready, call, free_at, occupancy, hardware):
    """Return the least (decode finish, prefill finish, p, d, decode start) of (m, prefill, transfer, decode)."""
    demand, prefill, transfer, decode = call
    options = []
    for p, g in enumerate(hardware[0]):
        for d, h in enumerate(hardware[1]):
            if demand > hardware[2][d]:
                continue
            prefill_end = max(ready, free_at[p]) + prefill[g]
            start = occupancy.earliest(d, prefill_end + transfer[g][h], decode[h], demand)
            options.append((start + decode[h], prefill_end, p, d, start))
    return min(options)


def standalone(calls, parents, hardware):
    """Return each call's finish when calls are served alone by (ready time, key), each on its best pair.

    ``calls`` are (m, prefill, transfer, decode) by key, ``parents`` lists of (key, tool delay) by key.
    """
    free_at, occupancy = [0.0] * len(hardware[0]), Occupancy(hardware[2])
    finish = {}
    while len(finish) < len(calls):
        ready = {
            key: max([finish[p] + delay for p, delay in parents[key]], default=0.0)
            for key in calls
            if key not in finish and all(p in finish for p, _ in parents[key])
        }
        key = min(ready, key=lambda k: (ready[k], k))
        end, prefill_end, p, d, start = best_pair(ready[key], calls[key], free_at, occupancy, hardware)
        free_at[p], finish[key] = prefill_end, end
        occupancy.hold(d, start, end, calls[key][0])
    return finish


def hardware_of(holder):
    """Return (prefill classes, decode classes, capacities) of a view or an instance as lists."""
    return holder.prefill_class.tolist(), holder.decode_class.tolist(), holder.capacity_tokens.tolist()


def estimates(view, call):
    """Return (m, prefill, transfer, decode) of a revealed call as a policy sees them."""
    return (
        int(view.demand_tokens[call]),
        view.prefill_s[call].tolist(),
        view.transfer_s[call].tolist(),
        view.decode_s[call].tolist(),
    )


def revealed_horizon(view, workflow):
    """Return ``H_w(t)`` of the revealed calls from scratch."""
    calls = {view.index[c]: c for c in range(len(view.workflow)) if view.workflow[c] == workflow}
    parents = {i: [(view.index[p], delay) for p, delay in view.parents[c]] for i, c in calls.items()}
    return max(standalone({i: estimates(view, c) for i, c in calls.items()}, parents, hardware_of(view)).values())


def algorithm_1(view, stage, rerank_limit):
    """Return the plan of Algorithm 1 on a live view."""
    by_name = lambda call: (view.workflow[call], view.index[call])  # noqa: E731
    now, hardware = view.now, hardware_of(view)
    calls = {call: estimates(view, call) for call in range(len(view.workflow))}
    of_phase = {phase: [c for c in sorted(calls, key=by_name) if view.phase[c] is phase] for phase in Phase}
    waiting = of_phase[Phase.WAIT_PREFILL if stage is Stage.PREFILL else Phase.WAIT_DECODE]
    horizon = {call: revealed_horizon(view, view.workflow[call]) for call in waiting}
    occupancy, free_at = Occupancy(hardware[2]), [now] * len(hardware[0])

    def decode_on_own(call):
        return calls[call][3][hardware[1][view.decode_instance[call]]]

    def commit(call, ready, duration):
        d, demand = view.decode_instance[call], calls[call][0]
        start = occupancy.earliest(d, ready, duration, demand)
        occupancy.hold(d, start, start + duration, demand)

    for decoding in view.decoding:
        for call in decoding:
            commit(call, now, max(0.0, view.decode_start_s[call] + decode_on_own(call) - now))
    if stage is Stage.PREFILL:
        for d in range(len(hardware[1])):
            for call in view.decode_queue(d):
                commit(call, now, decode_on_own(call))
        for phase in (Phase.TRANSFER, Phase.PREFILL):
            ready = {}
            for call in of_phase[phase]:
                p, d = view.prefill_instance[call], view.decode_instance[call]
                end = view.prefill_end_s[call]
                if phase is Phase.PREFILL:
                    free_at[p] = end = max(now, view.prefill_start_s[call] + calls[call][1][hardware[0][p]])
                ready[call] = max(now, end + calls[call][2][hardware[0][p]][hardware[1][d]])
            for call in sorted(ready, key=lambda c: (ready[c], by_name(c))):
                commit(call, ready[call], decode_on_own(call))

    def project(call):
        if stage is Stage.PREFILL:
            return best_pair(now, calls[call], free_at, occupancy, hardware)
        d, decode = view.decode_instance[call], decode_on_own(call)
        start = occupancy.earliest(d, now, decode, calls[call][0])
        return start + decode, now, -1, d, start

    def risk(call):
        return (now - view.arrival_s[view.workflow[call]] + (project(call)[0] - now)) / horizon[call]

    ranked_once = sorted(waiting, key=lambda call: (-risk(call), by_name(call)))
    pending, plan = list(ranked_once), []
    while pending:
        call = pending[0]
        if len(waiting) <= rerank_limit:
            call = min(pending, key=lambda call: (-risk(call), by_name(call)))
        finish, prefill_end, p, d, start = project(call)
        plan.append(Assignment(call, len(plan), p, d))
        if p >= 0:
            free_at[p] = prefill_end
        occupancy.hold(d, start, finish, calls[call][0])
        pending.remove(call)
    return plan
