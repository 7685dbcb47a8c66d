import math

from headwater.storage.nested_keys import look_up


def test_look_up_follows_slashes():
    assert look_up({"a": {"b": 3}}, "a/b") == 3.0
    for result in ({}, {"a": 3}, {"a": {"b": "text"}}, {"a": {"b": None}}):
        assert math.isnan(look_up(result, "a/b"))
