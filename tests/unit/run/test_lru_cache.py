"""A memory of what was used last, against a list of everything that happened."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.run.compile import lru_cache
from phalanx.run.compile.lru_cache import LRUCache

KEYS = st.none() | st.integers(0, 5)


@given(st.integers(1, 4), st.lists(st.tuples(KEYS, st.none() | st.integers())))
def test_least_recently_used_entry_is_forgotten(most, asked):
    memory, used = LRUCache(most), {}
    for key, value in asked:
        if value is None:
            found = memory.look_up(key)
            assert found == used.get(key)
            if found is not None:
                used[key] = used.pop(key)
        else:
            memory.keep(key, value)
            if key is not None:
                used.pop(key, None)
                used[key] = value
                used = dict(list(used.items())[-most:])
    if used:
        assert memory.last() == list(used.items())[-1]


def test_all_of_it_can_be_forgotten():
    memory = LRUCache(2)
    memory.keep("a", 1)
    memory.clear()
    assert memory.look_up("a") is None


def test_memory_is_returned_when_a_program_is_removed_and_at_most_once_a_second(monkeypatch):
    returned, now = [], [10.0]
    monkeypatch.setattr(lru_cache, "return_memory", lambda: returned.append(now[0]))
    monkeypatch.setattr(lru_cache.time, "monotonic", lambda: now[0])
    programs, numbers = LRUCache(2, of_programs=True), LRUCache(2)
    for number in range(6):
        programs.keep(number, object())
        numbers.keep(number, object())
        now[0] += 0.6
    assert returned == pytest.approx([11.2, 12.4])


def test_the_memory_that_the_c_library_holds_is_returned():
    lru_cache.return_memory()
