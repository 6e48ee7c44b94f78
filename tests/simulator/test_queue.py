"""The ranked queue against a sorted list."""

from hypothesis import given
from hypothesis import strategies as st

from workbench.simulator.queue import RankedQueue


@given(
    st.lists(st.tuples(st.sampled_from(["put", "remove", "first", "ordered"]), st.integers(0, 7), st.integers(0, 5)))
)
def test_it_behaves_as_a_sorted_dictionary(steps):
    """Whatever is put, ranked anew and removed, first and order are those of the present keys."""
    queue, model = RankedQueue(), {}
    for step, call, rank in steps:
        if step == "put":
            model[call] = (rank, call)
            queue.put(call, (rank, call))
        elif step == "remove" and call in model:
            del model[call]
            queue.remove(call)
        in_order = sorted(model, key=model.__getitem__)
        assert len(queue) == len(model)
        assert queue.first() == (in_order[0] if in_order else None)
        if step == "ordered":
            assert queue.ordered() == in_order


def test_many_changes_of_rank_do_not_pile_up():
    """A thousand changes for ten calls leave the heap small and the order right."""
    queue = RankedQueue()
    for turn in range(1000):
        for call in range(10):
            queue.put(call, ((call * 7 + turn) % 10, call))
    assert len(queue._heap) <= 2 * len(queue) + 64
    taken = []
    while (call := queue.first()) is not None:
        taken.append((call * 7 + 999) % 10)
        queue.remove(call)
    assert taken == list(range(10))


def test_a_call_may_come_back_with_the_same_key_object():
    """Removed and put again with the key it had, it is there once."""
    queue, key = RankedQueue(), (1, 0, 0)
    queue.put(3, key)
    queue.remove(3)
    assert queue.first() is None
    queue.put(3, key)
    assert queue.first() == 3
    queue.remove(3)
    assert queue.first() is None
