"""Settings: flag over env var over default, and a clear line for every bad value."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from audiomarathon.errors import SettingsError
from audiomarathon.settings import RunSettings, env_names


def test_empty_env_vars_and_flags_that_are_none_count_as_unset() -> None:
    assert RunSettings.read({"PRUNE_RATIO": "", "BALANCE": ""}) == RunSettings.read({}) == RunSettings()
    assert RunSettings.read({"SAMPLE_LIMIT": "10"}, limit=None).limit == 10


def test_lists_booleans_and_numbers_are_read_from_env_vars() -> None:
    settings = RunSettings.read({"SKIP_PERSONS": "2, 10", "BALANCE": "yes", "TIMING": "0", "BATCH_SIZE": "4"})
    assert (settings.skip_persons, settings.balance) == (("2", "10"), True)
    assert (settings.timing, settings.batch_size) == (False, 4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PRUNE_RATIO", "1"), ("PRUNE_RATIO", "-0.1"), ("PRUNE_LAYER_IDX", "2.5"), ("DEVICE", "cuda:x"),
        ("BATCH_SIZE", "0"), ("SEED", str(2**70)),
    ],
)  # fmt: skip
def test_a_bad_setting_gives_a_one_line_error_with_name_value_and_allowed_values(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        RunSettings.read({name: value})
    message = str(caught.value)
    assert message.startswith(f"{name}={value}: ")
    assert env_names()[name] in message
    assert "\n" not in message


ODD = ("abc", "-1", "nan", "inf", "1e9", "٣", "²", "1_0", "0x1", "9" * 5000, "/", "1\n2", "1\x1b[31m", "true false")


@pytest.mark.parametrize("odd", ODD)
def test_malformed_or_unprintable_setting_values_are_refused_in_one_short_line(odd: str) -> None:
    free = {"PRUNE_METHOD", "RESULTS_DIR", "MODEL_PATH", "AUDIOMARATHON_DATA", "SKIP_PERSONS", "SKIP_EMOTION"}
    free |= {"TASK_SPLIT", "TASK_PROMPT"}
    for name in env_names():
        if name in free and odd.isprintable() and len(odd) < 1000:
            assert odd in str(RunSettings.read({name: odd}))
            continue
        with pytest.raises(SettingsError, match=f"^{name}=.*not allowed.*allowed: ") as caught:
            RunSettings.read({name: odd})
        assert len(str(caught.value)) < 200
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["TIMING", "PRUNE_RATIO", "SAMPLE_LIMIT", "RESULTS_DIR", "DEVICE"])
def test_blanks_around_a_setting_value_are_ignored(name: str) -> None:
    assert RunSettings.read({name: " \r\n"}) == RunSettings.read({})
    assert RunSettings.read({"PRUNE_RATIO": "0.5\r"}).ratio == 0.5


@pytest.mark.parametrize("name", ["RESULTS_DIR", "AUDIOMARATHON_DATA", "MODEL_PATH"])
@pytest.mark.parametrize("path", ["~no-such-user/x", "out/" + "x" * 256])
def test_an_impossible_path_for_a_folder_setting_is_refused(name: str, path: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}={path[:9]}.*not allowed.*folder"):
        RunSettings.read({name: path})


def test_the_error_on_a_bad_flag_names_the_flag() -> None:
    for ratio in ("2", 2):
        with pytest.raises(SettingsError, match="--ratio=2: not allowed"):
            RunSettings.read({}, ratio=ratio)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"BATCH_SIZE": "8"}, r"BATCH_SIZE=8.*--no-timing"),
        ({"DECODE_TOKENS": "64", "TIMING": "0"}, r"DECODE_TOKENS=64: .*timing"),
        ({"DECODE_TOKENS": "1"}, "DECODE_TOKENS=1"),  # one token has no rate
        ({"DECODE": "graph", "DEVICE_MAP": "auto"}, r"DECODE=graph .*DEVICE_MAP=auto.*DECODE=eager"),
        ({"DEVICE": "cpu", "DEVICE_MAP": "auto"}, r"DEVICE=cpu .*DEVICE_MAP=auto"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(env: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        RunSettings.read(env)


def test_a_tilde_in_the_results_folder_is_expanded() -> None:
    assert RunSettings.read({"RESULTS_DIR": "~/out"}).results == Path.home() / "out"


@pytest.mark.parametrize("method", ["fast_v:0.5", "dart:0.5+tova:0.3"])
def test_a_ratio_given_together_with_a_ratio_in_the_method_name_is_refused(method: str) -> None:
    with pytest.raises(SettingsError, match=f"PRUNE_RATIO=0.2 .*PRUNE_METHOD={re.escape(method)}: .*one ratio"):
        RunSettings.read({"PRUNE_METHOD": method, "PRUNE_RATIO": "0.2"})
    assert RunSettings.read({"PRUNE_METHOD": method}).method == method


@pytest.mark.parametrize(
    ("name", "meant"),
    [("PRUNE_RATOI", "PRUNE_RATIO"), ("PRUNE_METOD", "PRUNE_METHOD"), ("prune_method", "PRUNE_METHOD"),
     ("PRUN_METHOD", "PRUNE_METHOD"), ("PRUNE_LAYER", "PRUNE_LAYER_IDX")],
)  # fmt: skip
def test_an_unknown_env_var_that_begins_with_prune_is_refused(name: str, meant: str) -> None:
    with pytest.raises(SettingsError, match=rf"unknown .*{name} .*'{meant}'.*PRUNE_"):
        RunSettings.read({name: "0.5"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SAMPLE_LIMT", "SAMPLE_LIMIT"), ("RESULT_DIR", "RESULTS_DIR"),
        ("model_path", "MODEL_PATH"), ("DEVIC", None), ("DTYPES", "DTYPE"),
        ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"), ("SEDE", None),
        ("AUDIOMARATHON_DAT", "AUDIOMARATHON_DATA"), ("BATCH-SIZE", "BATCH_SIZE"), ("SAMPLE_LIMIT", None),
        ("OPENAI_BASEURL", "OPENAI_BASE_URL"), ("OPENAI_BASE_URL", None),
        ("GTZAN_DATA_PATH", None), ("LD_LIBRARY_PATH", None), ("PYTHONPATH", None), ("MY_DATA_PATH", None),
        ("MODULE_PATH", None), ("SAMPLE_LIMITATION", None), ("SAMPLE", None),
    ],
)  # fmt: skip
def test_an_env_var_named_almost_like_a_setting_warns(name: str, meant: str | None) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        RunSettings.read({name: "1"})
    wanted = [f"unknown env var {name} is ignored (did you mean {meant!r}?)"] if meant else []
    assert [str(warning.message) for warning in told] == wanted


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"unknown .*'raito'"):
        RunSettings.read({}, raito=0.5)


def test_a_prune_schedule_is_normalised_and_an_invalid_one_is_refused() -> None:
    settings = RunSettings.read({"PRUNE_SCHEDULE": "2:0.30, 8:0.5,16:.7"})
    assert settings.schedule == settings.places["schedule"] == "2:0.3,8:0.5,16:0.7"
    assert RunSettings.read({}, schedule=settings.schedule) == settings
    with pytest.raises(SettingsError, match=r"PRUNE_SCHEDULE=2:0.5,8:0.3: not allowed; .*both rising"):
        RunSettings.read({"PRUNE_SCHEDULE": "2:0.5,8:0.3"})
    with pytest.raises(SettingsError, match=r"PRUNE_SCHEDULE=2:0.5 with PRUNE_AT=input"):
        RunSettings.read({"PRUNE_SCHEDULE": "2:0.5", "PRUNE_AT": "input"})
