"""The verbs are written once, and both clients have them: typed, named and described alike."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from mypy import api

import tidemill

_USER_CODE = Path(__file__).with_name("user_code.py")
_NAMESPACES = ("topics", "groups", "dead_letters", "tables", "admin")


def _names(value: object) -> list[str]:
    return [name for name in dir(value) if not name.startswith("_")]


@pytest.mark.slow
def test_a_type_checker_knows_the_answers_of_both_clients() -> None:
    report, errors, status = api.run(["--strict", "--warn-unused-ignores", str(_USER_CODE)])
    assert (status, errors) == (0, ""), report


def test_both_clients_have_the_same_verbs_with_the_same_parameters() -> None:
    blocking, awaited = tidemill.Client("127.0.0.1:1"), tidemill.AsyncClient("127.0.0.1:1")
    assert _names(blocking) == _names(awaited)
    for name in _NAMESPACES:
        assert _names(getattr(blocking, name)) == _names(getattr(awaited, name))
    for ours, theirs in [
        (blocking, awaited),
        *((getattr(blocking, name), getattr(awaited, name)) for name in _NAMESPACES),
    ]:
        for name in _names(ours):
            one, other = getattr(ours, name), getattr(theirs, name)
            if name not in ("close", "endpoint", *_NAMESPACES):
                assert inspect.signature(one).parameters == inspect.signature(other).parameters, name
                assert inspect.getdoc(one), name
                assert not inspect.iscoroutinefunction(one)
                assert inspect.iscoroutinefunction(other) or inspect.isasyncgenfunction(other), name


def test_a_verb_of_the_class_is_a_function_with_its_documentation() -> None:
    assert "definite outcome" in (inspect.getdoc(tidemill.Client.cancel) or "")
    assert list(inspect.signature(tidemill.Client.cancel).parameters) == ["self", "handle", "request_id"]
