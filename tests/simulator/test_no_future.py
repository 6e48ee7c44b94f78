"""What an online policy does before a time never depends on anything that is revealed after it."""

import random
from copy import deepcopy

import pytest
from builders import CLUSTERS, MIXED, TIGHT, Hardware, Watched, random_calls, random_flows, random_job

from workbench import simulate
from workbench.policies import Assignment, Policy, Stage, available, create

ONLINE = [
    *(name for name, policy in available().items() if policy.information == "revealed"),
    "fcfs:dispatch=random",
    "fcfs:dispatch=cache_aware",
    "workflow-fcfs:dispatch=round_robin",
    "hexagent:rerank_limit=1",
    "atlas:first_queue_s=0.5:beta=0.5",
]


def history(schedule, until):
    """Return all that happened up to a time: (time, workflow, call, event, instances), in order."""
    inst, events = schedule.instance, []
    for w in range(inst.n_workflows):
        for i, c in enumerate(range(inst.first_call[w], inst.first_call[w + 1])):
            p, d = int(schedule.prefill_instance[c]), int(schedule.decode_instance[c])
            events += [
                (schedule.reveal_s[c], w, i, "reveal", ()),
                (schedule.prefill_start_s[c], w, i, "prefill", (p, d)),
                (schedule.prefill_end_s[c], w, i, "transfer", (p, d)),
                (schedule.transfer_end_s[c], w, i, "ready", (d,)),
                (schedule.decode_start_s[c], w, i, "decode", (d,)),
                (schedule.decode_end_s[c], w, i, "complete", (d,)),
            ]
    return sorted(event for event in events if event[0] <= until)


def with_another_future(rng, flows, schedule, hardware, now):
    """Return the flows with everything changed that is not revealed at ``now``.

    Lengths, tool delays, and arrivals of workflows to come are drawn anew; calls are added to and dropped from the end
    of workflows, and workflows to and from the end of the list.
    """
    changed, first = deepcopy(flows), schedule.instance.first_call

    def later(parents, ends):
        """Return tool delays that keep a call with these parents hidden, whose decodes end then."""
        delays = {p: rng.choice([0.0, 0.5, rng.uniform(0, 3)]) for p in parents}
        if all(ends[p] <= now for p in parents):
            held_back = rng.choice(list(parents))
            delays[held_back] = now - ends[held_back] + rng.uniform(0.1, 2)
        return delays

    for w, (arrival, calls) in enumerate(changed):
        if arrival > now:
            changed[w] = (now + rng.uniform(0.01, 5), random_calls(rng, hardware, False, True))
            continue
        here = range(first[w], first[w + 1])
        ends, hidden = list(schedule.decode_end_s[here]), [schedule.reveal_s[c] > now for c in here]
        while hidden[-1] and rng.random() < 0.4:
            calls.pop(), ends.pop(), hidden.pop()
        for i, job in enumerate(calls):
            if hidden[i]:
                calls[i] = random_job(rng, hardware, False, True)
                calls[i].parents = later(job.parents, ends)
                ends[i] = float("inf")
        for _ in range(rng.choice([0, 0, 1, 3])):
            parents = rng.sample(range(len(calls)), rng.randint(1, min(3, len(calls))))
            job = random_job(rng, hardware, False, True)
            job.parents = later(parents, ends)
            calls.append(job)
            ends.append(float("inf"))
    while len(changed) > 1 and changed[-1][0] > now and rng.random() < 0.4:
        changed.pop()
    for _ in range(rng.choice([0, 0, 1, 3])):
        changed.append((now + rng.uniform(0.01, 5), random_calls(rng, hardware, False, True)))
    return changed


def with_other_true_lengths(rng, flows, schedule, now):
    """Return the flows with other true decode times of calls that decode or wait, and the same predictions.

    The true KV demand is what admission goes by; it is changed where prefill has not begun.
    """
    changed, c = deepcopy(flows), 0
    for _, calls in changed:
        for job in calls:
            if schedule.decode_end_s[c] > now:
                job.predicted_decode = job.decode if job.predicted_decode is None else job.predicted_decode
                least = max(0.0, now - schedule.decode_start_s[c])
                job.decode = [least + rng.uniform(0.01, 4) for _ in job.decode]
            if schedule.prefill_start_s[c] > now:
                job.predicted_output, job.output = job.predicted_output or job.output, rng.randint(1, 4)
            c += 1
    return changed


def first_difference(policy, hardware: Hardware, seed: int, futures: int = 4, lengths: bool = False):
    """Run a policy with several futures and return the first one that shows before its time, or None."""
    rng = random.Random(seed)
    flows = random_flows(rng, hardware, rng.randint(2, 8), rng.random() < 0.5, rng.random() < 0.5)
    watched = Watched(policy(flows, hardware) if callable(policy) else create(policy))
    schedule = simulate(hardware.build(flows), watched, seed=seed)
    plans = watched.plans
    moments = sorted({*schedule.reveal_s, *schedule.prefill_start_s, *schedule.decode_end_s})
    for _ in range(futures):
        now = rng.choice(moments) + rng.choice([0.0, 0.0, 0.01])
        if lengths:
            other = with_other_true_lengths(rng, flows, schedule, now)
        else:
            other = with_another_future(rng, flows, schedule, hardware, now)
        if callable(policy):
            watched = Watched(policy(other, hardware))
        again = simulate(hardware.build(other), watched, seed=seed)
        if history(again, now) != history(schedule, now):
            return now, "history"
        if [plan for plan in watched.plans if plan[0] <= now] != [plan for plan in plans if plan[0] <= now]:
            return now, "plans"
    return None


@pytest.mark.parametrize("hardware", CLUSTERS)
@pytest.mark.parametrize("spec", ONLINE)
def test_the_past_does_not_depend_on_what_is_not_revealed(spec, hardware):
    """Plans, starts, placements and ends up to t are the same for every future of the revealed calls."""
    for seed in range(8):
        assert first_difference(spec, CLUSTERS[hardware], seed) is None


@pytest.mark.parametrize("hardware", CLUSTERS)
@pytest.mark.parametrize("spec", ONLINE)
def test_the_past_does_not_depend_on_true_lengths(spec, hardware):
    """A policy goes by predictions: a true output length shows only when the decode ends, or refuses the instance."""
    for seed in range(4):
        assert first_difference(spec, CLUSTERS[hardware], seed, lengths=True) is None


class Peeks(Policy):
    """Serves first the calls that a function of the hidden instance ranks first."""

    name = "peeks"

    def __init__(self, instance, secret):
        self.instance, self.secret, self.turn = instance, secret, 0

    def plan(self, view, stage):
        """Plan every waiting call, in turn on the prefill instances."""
        for call in view.waiting_prefill:
            w, i = view.workflow[call], view.index[call]
            p = i % len(view.prefill_class)
            d = int(view.capacity_tokens.argmax())
            yield Assignment(call, self.secret(self.instance, w, self.instance.first_call[w] + i), p, d)


SECRETS = {
    "how many calls the workflow will have": lambda inst, w, c: int(inst.first_call[w + 1] - inst.first_call[w]),
    "how long the workflow will take": lambda inst, w, c: float(inst.horizon_s[w]),
    "how many workflows will come": lambda inst, w, c: (-1) ** inst.n_workflows * w,
    "when the last workflow comes": lambda inst, w, c: w * (0.5 - float(inst.arrival_s.max()) % 1),
    "what children the call has": lambda inst, w, c: -len(inst.children[c]),
}


@pytest.mark.parametrize("secret", SECRETS)
def test_a_policy_that_peeks_is_caught(secret):
    """The test above has teeth: a policy that ranks with any one secret of the future fails it."""

    def policy(flows, hardware):
        return Peeks(hardware.build(flows), SECRETS[secret])

    assert any(first_difference(policy, hardware, seed) for hardware in (TIGHT, MIXED) for seed in range(12))


def test_a_policy_that_reads_true_lengths_is_caught():
    """So has the second: ranking by the true decode time fails it."""

    def policy(flows, hardware):
        return Peeks(hardware.build(flows), lambda inst, w, c: float(inst.decode_s[c].min()))

    assert any(first_difference(policy, TIGHT, seed, lengths=True) for seed in range(12))


def test_the_view_never_holds_a_call_that_is_not_revealed():
    """At every plan the view's calls are exactly those whose reveal time has come, with exactly their edges."""
    flows = random_flows(random.Random(8), MIXED, 10, True)
    seen = []

    def watch(view, stage, plan):
        names = {(view.workflow[c], view.index[c]) for c in range(len(view.workflow))}
        edges = {
            (view.workflow[c], view.index[c]): {(view.index[p], delay) for p, delay in view.parents[c]}
            for c in range(len(view.workflow))
        }
        assert set(view.arrival_s) == {w for w, (arrival, _) in enumerate(flows) if arrival <= view.now}
        seen.append((view.now, stage, names, edges))

    schedule = simulate(MIXED.build(flows), Watched("hexagent", watch))
    first = schedule.instance.first_call
    reveal = {(w, i): schedule.reveal_s[first[w] + i] for w, (_, calls) in enumerate(flows) for i in range(len(calls))}
    assert {stage for _, stage, _, _ in seen} == set(Stage)
    for now, _, names, edges in seen:
        assert names == {name for name, time in reveal.items() if time <= now}
        assert all(edges[w, i] == set(flows[w][1][i].parents.items()) for w, i in names)
