"""Ray workers encode clips to the same embeddings as this process, whatever happens to a worker."""

# ruff: noqa: F811
from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_cli import one_error
from test_encoder_command import Command, command  # noqa: F401
from test_probing_runs import FramesEncoder

from audiomarathon.audio.member import Member
from audiomarathon.engine.ray_options import Ray
from audiomarathon.errors import ExecutorError, SettingsError
from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.encoder import Encoder, from_module
from audiomarathon.wings.encoders.probing import encode
from audiomarathon.wings.encoders.probing.encode import Heard, encode_own, encode_published, hear
from audiomarathon.wings.encoders.probing.store import FrameStore, Rows, Store
from audiomarathon.wings.encoders.registry import load_encoder
from audiomarathon.wings.encoders.sounds_task import write_task
from audiomarathon.wings.encoders.xares.tasks import named

if find_spec("ray"):
    from ray import cloudpickle
    from ray.exceptions import RayError

    from audiomarathon.engine import ray_pool
    from audiomarathon.wings.encoders.probing import ray_encoder

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (pip install 'ray>=2.40')")

#: DEADLY is "never", "once" or the length of a clip that kills any worker. The process DEADLY_SPARES never dies.
ENCODER = """
import os
import time
from pathlib import Path

import torch


class SpectrumEncoder(torch.nn.Module):
    sampling_rate, output_dim, hop_size_in_ms = 16000, 8, 10

    def __init__(self):
        super().__init__()
        if str(os.getpid()) != os.environ["DEADLY_SPARES"] and "DEADLY_LOADING" in os.environ:
            os._exit(1)

    def forward(self, audio, lengths=None):
        if str(os.getpid()) != os.environ["DEADLY_SPARES"]:
            self.note([] if lengths is None else lengths.tolist())
        frames = torch.nn.functional.pad(audio, (0, -audio.shape[1] % 160)).unfold(1, 160, 160)
        features = (torch.fft.rfft(frames, dim=-1).abs()[..., :80].unflatten(-1, (8, 10)).mean(-1) + 1e-4).log()
        return features if lengths is None else (features, -(-lengths // 160))

    def note(self, lengths):
        notes = Path(os.environ["DEADLY_NOTES"])
        with (notes / "raylets").open("a") as stream:
            stream.write(f"{os.getppid()}\\n")
        time.sleep(float(os.environ.get("DEADLY_PAUSE", 0)))
        if os.environ["DEADLY"] in map(str, lengths):
            os._exit(1)
        if os.environ["DEADLY"] == "once":
            try:
                (notes / "died").touch(exist_ok=False)
            except FileExistsError:
                return
            os._exit(1)
"""


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("env")
    write_task(root, clips=1, seconds=(0.2, 0.4))
    (root / "spectrum_encoder.py").write_text(ENCODER)
    return root


@pytest.fixture
def workers(env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Start Ray workers that die when the environment says so."""
    monkeypatch.chdir(env)
    monkeypatch.setattr(encode, "BATCH_SECONDS", 1.0)
    for name, value in {"": "never", "_SPARES": os.getpid(), "_NOTES": tmp_path}.items():
        monkeypatch.setenv(f"DEADLY{name}", str(value))

    def call(wanted: Ray, die: str, said: list[str]) -> Any:
        monkeypatch.setenv("DEADLY", die)
        return ray_encoder.shared_out(loaded(), "spectrum_encoder.py", {}, "cpu", wanted, said.append)

    return call


class Copies:
    """In place of Ray: workers are objects of this process, reached by pickles. The first batch kills its worker."""

    died = False

    def remote(self, **_options: Any) -> Callable[[type], Any]:
        return lambda actor: SimpleNamespace(remote=lambda *given: Copy(actor(*copied(given))))

    def wait(self, calls: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return calls[:1], calls[1:]

    def get(self, call: Callable[[], Any]) -> Any:
        result = call()
        if not isinstance(result, ray_pool.Place) and not self.died:
            self.died = True
            raise RayError("died")
        return result


@dataclass(eq=False)
class Copy:
    actor: Any

    def __getattr__(self, method: str) -> Any:
        def remote(*given: Any) -> Callable[[], Any]:
            return lambda: copied(getattr(self.actor, method)(*copied(given)))

        return SimpleNamespace(remote=remote, options=lambda **_options: SimpleNamespace(remote=remote))


def copied(thing: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(thing))


def loaded(folder: Path = Path()) -> Encoder:
    return load_encoder(str(folder / "spectrum_encoder.py"))


def heard_of(env: Path) -> list[Heard]:
    return hear(named([str(env / "sounds_task.py")])[0].read(env).clips, 16_000)


def rows_of(encoder: Encoder, heard: list[Heard], folder: Path) -> tuple[Rows, dict[str, str]]:
    """Return embeddings of clips, of X-ARES' batches and of frames, and the failed clips."""
    store = Store(folder, {})
    frames = FrameStore(store)
    failed = encode_own(encoder, heard, store)
    whole = [heard_clip for heard_clip in heard if heard_clip.clip.id not in failed]
    encode_published(encoder, whole, encode.Recipe(encode_batch=4), store)
    encode_own(encoder, heard, frames)
    return {**store.rows, **{f"frames {row}": frame_row for row, frame_row in frames.rows.items()}}, failed


def raw(rows: Rows) -> dict[str, tuple[Any, tuple[int, ...], bytes]]:
    return {name: (row.dtype, row.shape, row.tobytes()) for name, row in rows.items()}


@pytest.mark.parametrize("ray", ["copies", pytest.param("ray", marks=pytest.mark.long)])
def test_ray_workers_give_the_embeddings_of_a_local_run_even_after_a_worker_is_killed(
    workers, env: Path, tmp_path: Path, ray: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ray == "copies":
        monkeypatch.setattr(ray_pool, "ray", Copies())
        shape = ray_pool.Shape(workers=2, gpus=0, cpus=1, sharing=2)
        monkeypatch.setattr(ray_encoder, "connected", lambda *_: nullcontext(shape))
    heard, said = heard_of(env), list[str]()
    broken = replace(heard[7].clip, audio=Member(env / "sounds_task.py", "broken.wav", 0, 100))
    heard[7] = replace(heard[7], clip=broken, audio="broken")
    here, lost = rows_of(loaded(), heard, tmp_path / "local")
    assert [*lost] == [broken.id]
    with workers(Ray(workers=2), "once", said) as shared:
        rows, failed = rows_of(shared, heard, tmp_path / "ray")
        assert raw(rows) == raw(here)
        assert failed == lost
        assert sum(" died;" in line for line in said) == 1
        assert ray == "copies" or (tmp_path / "died").exists()

        done = list[int]()

        def stop(clips: int) -> None:
            done.append(clips)
            if len(done) == 4:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            encode_own(shared, heard, Store(tmp_path / "stopped", {}), stop)
    kept = raw(Store(tmp_path / "stopped", {}).rows)
    assert len(heard) > len(kept) >= sum(done)
    assert kept.items() <= raw(here).items()


@pytest.mark.long
def test_a_clip_that_kills_every_ray_worker_fails_alone(workers, env: Path, tmp_path: Path) -> None:
    heard, said = heard_of(env), list[str]()
    deadly = max(heard, key=lambda heard_clip: heard_clip.samples)
    here, there = Store(tmp_path / "local", {}), Store(tmp_path / "ray", {})
    encode_own(loaded(), heard, here)
    with workers(Ray(workers=2), str(deadly.samples), said) as shared:
        failed = encode_own(shared, heard, there)
    assert failed == {deadly.clip.id: "WorkerLost: 3 workers died encoding it"}
    assert here.rows.keys() - there.rows.keys() == {deadly.audio}
    for name, row in there.rows.items():
        np.testing.assert_allclose(row, here.rows[name], rtol=1e-5)
    assert sum(" died;" in line for line in said) == 4  # three with its batch, one with the clip alone


@pytest.mark.long
def test_ray_workers_that_die_while_loading_end_the_run(workers, env: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(ray_pool, "_QUIET_S", 1)
    monkeypatch.setenv("DEADLY_LOADING", "1")
    with workers(Ray(workers=1), "never", []) as shared, pytest.raises(ExecutorError, match="no worker can load"):
        encode_own(shared, heard_of(env), Store(tmp_path / "ray", {}))


@contextmanager
def machines(*cores: int) -> Iterator[Any]:
    """Start a Ray cluster: a head without CPU cores, and machines with these numbers of cores, all simulated here."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        made.machines = [made.add_node(num_cpus=count) for count in cores]
        made.wait_for_nodes()
        yield made
    finally:
        made.shutdown()


@pytest.mark.long
def test_an_encoder_run_on_two_machines_equals_a_local_run(
    command: Command, env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "BATCH_SECONDS", 1.0)
    for name, value in {"": "never", "_SPARES": os.getpid(), "_NOTES": tmp_path, "_PAUSE": 0.5}.items():
        monkeypatch.setenv(f"DEADLY{name}", str(value))
    given = ["run", os.path.relpath(env / "spectrum_encoder.py"), "--tasks", env / "sounds_task.py", "--seeds", "1"]
    given += ["--data", env]
    with machines(1, 1) as made:
        monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "there"))
        shared = ["--executor", "ray", "--address", made.address, "--workers", "2"]
        code, _, err = command(*given, *shared, "--results", "ray")
    assert code == 0, err
    assert "Ray: 2 workers, 1 CPU core each" in err
    assert len(set((tmp_path / "raylets").read_text().split())) == 2  # workers of both machines
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "here"))
    assert command(*given, "--results", "local")[0] == 0
    (here,), (there,) = ([*(tmp_path / name / "embeddings").iterdir()] for name in ("here", "there"))
    assert here.name == there.name
    identity = loaded(env).identity
    stores = [Store(tmp_path / name, identity) for name in ("here", "there")]
    assert raw(stores[0].rows) == raw(stores[1].rows) != {}
    for probe in ("linear", "knn", "mlp-xares-0.1.3"):
        ours, theirs = (Run.read(tmp_path / where / "own/sounds/SpectrumEncoder" / probe) for where in ("local", "ray"))
        assert ours.records.keys() == theirs.records.keys()
        assert all(record.reply == theirs.records[id_].reply for id_, record in ours.records.items())


@pytest.mark.long
@pytest.mark.parametrize("cores", [(1, 1), (1,)])
def test_the_clips_of_a_lost_machine_are_encoded_by_another_machine_if_there_is_one(
    workers, env: Path, tmp_path: Path, cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another machine the run ends, and keeps the encoded clips."""
    heard, said = heard_of(env), list[str]()
    here, there = Store(tmp_path / "local", {}), Store(tmp_path / "ray", {})
    encode_own(loaded(), heard, here)
    monkeypatch.setenv("DEADLY_PAUSE", "0.5")
    with machines(*cores) as made:
        gone = threading.Thread(target=made.remove_node, args=(made.machines[0], False))
        lost = nullcontext() if len(cores) == 2 else pytest.raises(ExecutorError, match="no machine is left")
        with workers(Ray(made.address, workers=len(cores)), "never", said) as shared, lost:
            encode_own(shared, heard, there, lambda _n: gone.ident or gone.start())
        gone.join()
    kept = raw(Store(tmp_path / "ray", {}).rows)
    assert (kept == raw(here.rows)) is (len(cores) == 2)
    assert kept
    assert kept.items() <= raw(here.rows).items()
    assert sum(" died;" in line for line in said) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--workers", "2"], "--workers=2: only for --executor ray"),
        (["--executor", "slurm"], "--executor=slurm: not allowed; allowed: local, ray"),
        (["--executor", "ray", "--workers", "0"], "--workers=0: not allowed"),
        (["--executor", "ray", "--gpus-per-worker", "2"], "an encoder takes one GPU; allowed: 0 to 1"),
        (["--executor", "ray", "--gpus-per-worker", "1", "--device", "cpu"], "--gpus-per-worker=1: DEVICE=cpu"),
        (["--executor", "ray", "--address", "127.0.0.1:1"], "no Ray cluster at 127.0.0.1:1"),
    ],
)
def test_a_wrong_executor_option_is_one_error_line(command: Command, env: Path, options: list[str], said: str) -> None:
    given = ["run", "control:noise", "--tasks", env / "sounds_task.py", "--protocol", "standard", *options]
    code, _, err = command(*given)
    assert code == 2
    assert said in one_error(err)


def test_an_encoder_module_without_an_importable_name_is_refused() -> None:
    module, told = FramesEncoder(), "FramesEncoder: Ray's workers load an encoder by name"
    shared = ray_encoder.shared_out(from_module(module), module, {}, "cpu", Ray(), print)
    with pytest.raises(SettingsError, match=told), shared:
        pass


def test_a_ray_worker_refuses_an_encoder_that_differs_from_the_local_one(workers, env: Path) -> None:
    given = ("spectrum_encoder.py", {}, "cpu")
    ray_encoder._Worker(*given, loaded().identity, 1, env).open()
    with pytest.raises(ExecutorError, match=r"differs from .* on this machine \(state\)"):
        ray_encoder._Worker(*given, {**loaded().identity, "state": "another"}, 1, env).open()
