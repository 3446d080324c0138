"""Every text survives the override grammar and OmegaConf, byte for byte."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import assume, example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from hpc_hydra.cli.quoting import mapping, override, quoted
from hpc_hydra.errors import ConfigError

parser = OverridesParser.create()
awkward = st.text("\\'\"${}a:,[]()= \n~%", max_size=12)


def read(line: str, default: object) -> object:
    parsed = parser.parse_override(line)
    assert not parsed.is_sweep_override()
    config = OmegaConf.create({"key": default})
    OmegaConf.update(config, "key", parsed.value(), merge=True)
    return config.key


@given(st.one_of(st.text(), awkward))
@example("a${b}")
@example("\\\\${b}\\")
@example("choice(1,2)")
@example("${oc.env:HOME}")
@example("null")
@example("1e3")
@example("010")
@example("$(touch pwned)")
@example("line\nbreak %j é 東京")
@example("")
def test_any_text_arrives_byte_for_byte(text: str) -> None:
    assume(text != "???")
    assert read(override("key", text), None) == text
    assert read(mapping("key", {"a.b-c": text}), {})["a.b-c"] == text  # type: ignore[index]


@pytest.mark.parametrize(("value", "text"), [(4, "4"), (0.8, "0.8"), (True, "true"), (None, "null"), ("a-b", "a-b")])
def test_plain_values_stay_readable(value: object, text: str) -> None:
    assert override("key", value) == f"key={text}"  # type: ignore[arg-type]


def test_three_question_marks_are_refused_as_a_missing_value() -> None:
    with pytest.raises(ConfigError, match="missing value"):
        quoted("???")
