"""Options generated from the settings, config files, grouped help, and shell completion."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from audiomarathon.cli import run as cli_run
from audiomarathon.cli import sweep as cli_sweep
from audiomarathon.cli.app import app, main
from audiomarathon.settings import RunSettings, settings_fields

ROOT = Path(__file__).parent.parent


@pytest.fixture
def call(no_env, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Run commands in an empty folder; return exit code, settings, other arguments and stderr."""
    monkeypatch.chdir(tmp_path)
    seen: list[tuple[RunSettings, dict[str, Any]]] = []

    def evaluate(tasks: list[str], model: str | None, settings: RunSettings, *_ray_and_track: object) -> int:
        seen.append((settings, {"tasks": tasks, "model": model}))
        return 0

    def run_sweep(tasks, model, settings, methods, ratios, *, ray, **more: Any) -> int:
        seen.append((settings, {"tasks": tasks, "model": model, "methods": methods, "ratios": ratios, **more}))
        return 0

    monkeypatch.setattr(cli_run, "evaluate", evaluate)
    monkeypatch.setattr(cli_sweep, "run_sweep", run_sweep)

    def run(*arguments: object, **env: str):
        seen.clear()
        result = CliRunner().invoke(app, list(map(str, arguments)), env=env)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, *(seen[0] if seen else (None, {})), result.stderr

    return run


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_every_environment_variable_setting_has_a_command_line_option(command: str) -> None:
    offered = {word for option in get_command(app).commands[command].params for word in option.opts}
    assert {f"--{setting.name.replace('_', '-')}" for setting in settings_fields()} <= offered


@pytest.mark.parametrize(
    ("key", "env", "file", "by_env", "by_flag", "name"),
    [
        ("device", "DEVICE", "cpu", "cuda", ("--device", "cuda:1"), "device"),
        ("limit", "SAMPLE_LIMIT", "3", "5", ("--limit", "7"), "limit"),
        ("timing", "TIMING", "no", "1", ("--no-timing",), "timing"),
        ("max-new-tokens", "MAX_NEW_TOKENS", "010", "2", ("--max-new-tokens", "3"), "max_new_tokens"),
        ("max_new_tokens", "MAX_NEW_TOKENS", "010", "2", ("--max-new-tokens", "3"), "max_new_tokens"),
    ],
)
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_command_line_flags_override_env_vars_which_override_the_config_file(
    call, command: str, key: str, env: str, file: str, by_env: str, by_flag: tuple[str, ...], name: str
) -> None:
    def value(settings: RunSettings) -> Any:
        return getattr(settings, name)

    Path("c.yaml").write_text(f"tasks: [tau, gtzan]\n{key}: {file}\n")
    from_file = RunSettings.read({}, **{name: file})
    _code, settings, given, _err = call(command, "--config", "c.yaml")
    assert value(settings) == value(from_file) != value(RunSettings())
    assert given["tasks"] == ["tau", "gtzan"]
    _code, settings, _given, _err = call(command, "--config", "c.yaml", **{env: by_env})
    assert value(settings) == value(RunSettings.read({env: by_env})) != value(from_file)
    _code, settings, given, _err = call(command, "vesus", "--config", "c.yaml", *by_flag, **{env: by_env})
    assert value(settings) == value(call(command, "tau", *by_flag)[1]) != value(RunSettings.read({env: by_env}))
    assert given["tasks"] == ["vesus"]


def test_sweep_arguments_in_flags_override_env_vars_which_override_the_config_file(call) -> None:
    Path("c.yaml").write_text("tasks: tau\nmethod: [dart, frame]\nratios: [0.1, 0.50]\nbase: false\ntflops:\n")
    assert call("sweep", "--config", "c.yaml")[2] == {
        "tasks": ["tau"], "model": None, "methods": "dart,frame", "ratios": "0.1,0.50", "base": False, "plan": False,
        "tflops": None, "logs": False, "track": "", "margins": {},
    }  # fmt: skip
    assert call("sweep", "--config", "c.yaml", PRUNE_METHOD="snapkv")[2]["methods"] == "snapkv"
    given = call("sweep", "--config", "c.yaml", "--methods", "tova", "--base", PRUNE_METHOD="snapkv")[2]
    assert (given["methods"], given["base"]) == ("tova", True)


def test_a_task_folder_in_an_env_var_wins_over_data_in_the_config_file(call) -> None:
    Path("c.yaml").write_text("tasks: tau\ndata: root\ndata_paths:\n  TAU_DATA_PATH: a\n  VOX_DATA_PATH: b\n")
    paths = {"TAU_DATA_PATH": "mine", "VOX_DATA_PATH": "b"}
    assert dict(call("run", "--config", "c.yaml", TAU_DATA_PATH="mine")[1].data_paths) == paths
    assert call("run", "--config", "c.yaml", AUDIOMARATHON_DATA="env")[1].data_paths == ()
    assert call("run", "--config", "c.yaml", "--data", "flag", TAU_DATA_PATH="mine")[1].data_paths == ()


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        (("run", "tau"), {}),
        (("run", "tau", "gtzan", "--model", "qwen2.5-omni", "--method", "dart", "--ratio", "0.1"), {"SEED": "7"}),
        (("run", "all", "--no-timing", "--batch-size", "4", "--results", "~/ö: #x", "--skip-persons", "2,10"), {}),
        (("run", "tau"), {"TAU_DATA_PATH": "/x", "BALANCE": "1", "MODEL_PATH": "no"}),
        (("sweep", "tau", "--ratio", "0.5", "--no-base", "--logs", "--tflops", "1.5"), {"PRUNE_METHOD": "dart,frame"}),
        (("sweep", "tau", "--methods", "fast_v:0.5+snapkv:0.3", "--ratios", "0.1:0.9:0.1"), {}),
    ],
)
def test_running_from_a_saved_config_file_equals_the_run_that_saved_it(
    call, arguments: tuple[str, ...], env: dict
) -> None:
    secrets = {"HF_TOKEN": "hf_secret", "OPENAI_API_KEY": "sk-secret"}
    assert call(*arguments, "--save-config", "c.yaml", **env, **secrets)[:2] == (0, None)  # nothing is run
    text = Path("c.yaml").read_text(encoding="utf-8")
    assert text.startswith("#")
    assert f"{arguments[0]} --config" in text.splitlines()[0]
    assert "secret" not in text
    assert isinstance(yaml.safe_load(text), dict)
    _code, settings, given, _err = call(arguments[0], "--config", "c.yaml")
    _code, wanted, wanted_given, _err = call(*arguments, **env)
    assert given == wanted_given
    wanted = replace(wanted, method="base") if arguments[0] == "sweep" else wanted  # a sweep has methods as arguments
    assert settings == wanted
    assert {entry.name for entry in Path().iterdir()} == {"c.yaml"}


def test_a_config_is_not_saved_if_the_settings_are_invalid(call) -> None:
    Path("c.yaml").write_text("as it was")
    assert call("run", "tau", "--ratio", "2", "--save-config", "c.yaml")[0] == 2
    assert Path("c.yaml").read_text() == "as it was"
    code, _settings, _given, err = call("run", "tau", "--save-config", "c.yaml/d.yaml")
    assert code == 2
    assert "cannot be written" in err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("tasks: tau\nraito: 0.5\n", r"c.yaml, line 2: raito: .*mean 'ratio'.*allowed: .*max-new-tokens, .*tasks"),
        ("tasks: tau\nratio: 1.5\n", "c.yaml: ratio=1.5: .*allowed: .*from 0 to below 1"),
        ("tasks: tau\nmodel_path: ~nobody-here/x\n", "c.yaml: model-path=~nobody.*allowed: a hub id"),
        ("tasks: tau\nlimit: {a: 1}\n", "c.yaml, line 2: limit: .*mapping"),
        ("tasks: tau\nlimit: [[1]]\n", "c.yaml, line 2: limit: .*sequence"),
        ("tasks: tau\nworkers: two\n", "c.yaml, line 2: workers=two: .*integer"),
        ("tasks: tau\ntiming: perhaps\n", "c.yaml: timing=perhaps: .*allowed: 1, 0 or cold"),
        ("tasks: tau\nratio: 0.1\nratio: 0.2\n", "c.yaml, line 3: ratio is given twice"),
        ("tasks: tau\nmodel-path: a\nmodel_path: b\n", "c.yaml, line 3: model_path is given twice"),
        ("tasks: tau\ndata_paths: {TAU: x}\n", "c.yaml: data_paths: .*'TAU'.*TAU_DATA_PATH"),
        ("tasks: tau\nlimit: \x1b[31m\n", "c.yaml: .*special characters"),
        ("a: b: c\n", "c.yaml, line 1: .*YAML: mapping values"),
        ("? [1]\n: 2\n", "c.yaml: expected lines"),
        ("- tau\n", "c.yaml: expected lines .*sequence"),
        ("", "c.yaml: expected lines .*nothing"),
        ("[" * 500, "c.yaml: .*nested too deeply"),
        ("config: other.yaml\n", "c.yaml, line 1: config: unknown key"),
        (None, "c.yaml: cannot be read: No such file"),
        (b"\xff\xfe\x00", "c.yaml.*cannot be read as YAML"),
        (b"tasks: \xff", "c.yaml.*cannot be read as YAML"),
        (Path, "c.yaml: cannot be read: a folder"),
    ],
)
def test_a_bad_config_file_is_a_one_line_error_with_its_name_and_exit_code_2(call, content: Any, told: str) -> None:
    file = Path("c.yaml")
    if content is Path:
        file.mkdir()
    elif content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, settings, _given, err = call("run", "--config", "c.yaml")
    assert (code, settings) == (2, None)
    assert re.fullmatch(f"error: {told}.*\n", err), err


def test_a_config_file_with_a_python_tag_runs_no_code(call) -> None:
    Path("c.yaml").write_text("tasks: tau\nmodel_path: !!python/object/apply:os.mkdir [oops]\n")
    call("run", "--config", "c.yaml")
    assert not Path("oops").exists()


class TestHelp:
    @pytest.mark.parametrize("command", ["run", "sweep", "certify"])
    def test_help_lists_options_under_their_groups(self, command: str) -> None:
        shown = CliRunner().invoke(app, [command, "--help"], terminal_width=80).stdout
        parts = re.split(r"(?m)^(\S.*):\n", shown.partition("Arguments:" if "Arguments:" in shown else "Options:")[2])
        groups = dict(zip(parts[1::2], parts[2::2], strict=True))
        offered = {word for option in get_command(app).commands[command].params for word in option.opts}
        for setting in settings_fields():
            flag = f"--{setting.name.replace('_', '-')}"
            if flag in offered and flag not in ("--method", "--ratio"):
                assert re.search(rf"(?m)^  {flag} .*", groups[setting.metadata["group"]]), flag
        assert max(len(line) for part in groups.values() for line in part.splitlines()) <= 80

    def test_help_shows_description_default_and_env_var_of_a_setting(self) -> None:
        shown = " ".join(CliRunner().invoke(app, ["run", "--help"]).stdout.split())
        for setting in settings_fields():
            assert setting.metadata["help"] in shown
            assert f"env: {setting.metadata['env']}]" in shown
        assert "[default: 42; env: SEED]" in shown


class TestCompletion:
    def complete(self, words: str, shell: str = "bash") -> list[str]:
        """Return the completions of some words, the last of which is unfinished."""
        env = {
            "_AUDIOMARATHON_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": f"audiomarathon {words}",
            "COMP_CWORD": str(len(words.split(" "))),
        }
        return CliRunner().invoke(app, [], env=env, prog_name="audiomarathon").stdout.split()

    @pytest.mark.parametrize(
        ("words", "offered"),
        [
            ("run ta", ["tau"]),
            ("sweep tau vox", ["vox", "vox_age"]),
            ("data card des", ["desed"]),
            ("run tau --model voxtral-s", ["voxtral-small"]),
            ("models download gemma3n-e2", ["gemma3n-e2b"]),
            ("run tau --method snap", ["snapkv"]),
            ("sweep tau --methods dart,fast_v:0.5+snap", ["dart,fast_v:0.5+snapkv"]),
            ("run tau --dtype fl", ["float32", "float16"]),
            ("run tau --save-c", ["--save-config"]),
        ],
    )
    def test_completion_completes_names_of_tasks_models_methods_and_options(
        self, words: str, offered: list[str]
    ) -> None:
        assert self.complete(words) == offered

    def test_completion_script_can_be_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
        monkeypatch.setattr("typer.testing._get_command", get_command)  # rebuilt, because it depends on the variable
        shown = CliRunner().invoke(app, ["--show-completion", "bash"], prog_name="audiomarathon")
        assert shown.exit_code == 0
        assert "_AUDIOMARATHON_COMPLETE" in shown.stdout

    def test_completion_imports_no_torch_transformers_or_numpy(self) -> None:
        code = (
            "import atexit, os, sys; from audiomarathon.cli.app import main\n"
            "atexit.register(lambda: print('loaded:', *{'torch', 'transformers', 'numpy'} & set(sys.modules)))\n"
            "os.environ.update(_AUDIOMARATHON_COMPLETE='complete_bash', COMP_CWORD='4',\n"
            "                  COMP_WORDS='audiomarathon run tau --method fr')\n"
            "sys.argv = ['audiomarathon']; main()"
        )
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        assert done.stdout.split() == ["frame", "loaded:"]


_BUILT = functools.cache(get_command)  # to build the command line takes longer than to find an error in it


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("frobnicate", "error: no such command 'frobnicate'; see audiomarathon --help"),
        ("models list", "error: no such command 'list'; see audiomarathon list models"),
        ("tasks", "error: no such command 'tasks'; see audiomarathon list tasks"),
        ("compare x --at-latency fast", "error: invalid value for '--at-latency': expected a number; see"),
        ("report x --samples 1.5", "error: invalid value for '--samples': expected a whole number; see"),
        ("attention plot x --layer -1", "'--layer': expected a number greater than or equal to 0; see"),
        ("run --layr 2", "see audiomarathon run --help"),
        ("run tau --results ''", "--results is empty; leave it out, or give a value"),
        ("run tau --method ' '", "--method is empty"),
        ("status ''", "runs is empty"),
        ("report x -o ''", "--output/-o is empty"),
        ("jasco import x.csv --model-name 'a\nb'", "allowed: one line of up to 200 characters"),
        ("report x -o x.pdf", "error: -o x.pdf: not allowed; allowed: a name that ends in .html"),
        ("doctor --model embedded --seconds inf", "--seconds inf: expected a finite number"),
        ("sweep tau --plan --tflops -inf", "--tflops -inf: expected a finite number"),
        ("ruler x --gap nan", "--gap nan: expected a finite number"),
        ("", "Usage: "),
        ("experiment", "Usage: "),
    ],
)
def test_an_invalid_command_line_is_a_one_line_error(words: str, told: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["audiomarathon", *shlex.split(words)])
    monkeypatch.setattr("typer.main.get_command", _BUILT)
    with pytest.raises(SystemExit) as ended:
        main()
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert told in err
    assert (err.count("\n") == 1) is (told != "Usage: ")
