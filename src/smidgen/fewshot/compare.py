"""Methods compared on the same episodes: accuracy on the queries after some steps on the support set. Every episode
starts from the backbone as it is; what is known is kept, so that an interrupted comparison goes on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from .. import api
from ..compiler.optimizers import Adam
from ..compiler.options import Memory
from ..errors import BadOption, NotFinite
from ..ir import Array
from ..methods import Update
from ..train.job import Job
from .episodes import MOST_WAYS, Episode, augmented, draw
from .prototypes import Prototypical, prototype_loss, prototypes
from .sets import ImageSet

NONE: Final = "none"
Told = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Settings:
    episodes: int = 50
    steps: int = 40
    lr: float = 1e-3
    support: int = 100  # most samples of it
    size: int | None = None
    channels: int = 3
    batch: int = 8
    seed: int = 0
    budget: str | int | None = None
    kernels: str = "fast"

    def checked(self) -> Settings:
        for name, least in (("episodes", 1), ("steps", 0), ("support", 5), ("batch", 1), ("channels", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise BadOption(f"{name}={value!r} is not a number from {least}", help=f"--{name} {max(least, 40)}")
        if not 0 < self.lr < math.inf:
            raise BadOption(f"lr={self.lr!r} is not a learning rate", help="--lr 0.001")
        return self


def compare(
    backbone: Any, sets: Sequence[ImageSet], methods: Sequence[Any], settings: Settings, *,
    known: MutableMapping[str, Any] | None = None, keep: Callable[[], None] = lambda: None,
    told: Told = lambda done, total, what: None,
) -> dict[str, Any]:  # fmt: skip
    """`known` holds what an interrupted comparison has found; `keep` is called after each episode."""
    found: MutableMapping[str, Any] = {} if known is None else known
    settings.checked()
    if not sets or not methods:
        raise BadOption("nothing to compare", help="--sets flowers.npz --methods none,last_layer,tinytrain")
    ways = min(MOST_WAYS, max(len(s.classes) for s in sets))
    key = fingerprint(backbone, settings)
    if found.get("fingerprint", key) != key:
        raise BadOption(
            "the file is of another comparison", why="the network or the settings were others",
            help="another file for --output, or the same settings",
        )  # fmt: skip
    found["fingerprint"], found["settings"] = key, asdict(settings)
    results = found.setdefault("results", {})
    plans = found.setdefault("plans", {})
    done, total = 0, len(sets) * len(methods) * settings.episodes
    bench = _Bench(Prototypical(backbone).eval(), ways, settings)
    for images in sets:
        for number in range(settings.episodes):
            missing = [m for m in methods if str(number) not in results.setdefault(f"{images.name} {m}", {})]
            done += len(methods) - len(missing)
            if not missing:
                continue
            data = bench.data(images, draw(images, number, settings.seed, settings.support, ways))
            for method in missing:
                done += 1
                told(done, total, f"{images.name}, {method}, episode {number + 1}")
                results[f"{images.name} {method}"][str(number)] = bench.accuracy(method, data, number)
                if method != NONE:
                    plans[str(method)] = bench.plan(method)
                keep()
    return dict(found) | {"rows": list(rows(results, [s.name for s in sets], [str(m) for m in methods], settings))}


def fingerprint(backbone: Any, settings: Settings) -> str:
    """Of all that a result depends on but the number of episodes."""
    key = hashlib.sha256(repr({k: v for k, v in asdict(settings).items() if k != "episodes"}).encode())
    for name, value in backbone.state_dict().items():
        key.update(name.encode() + np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return key.hexdigest()[:16]


def rows(
    results: Mapping[str, Mapping[str, float]], sets: Sequence[str], methods: Sequence[str], settings: Settings
) -> Iterator[dict[str, Any]]:
    """Mean accuracy with its interval of 95 %, and the same of the difference to the first method, episode by
    episode."""
    for name in sets:
        first = [results[f"{name} {methods[0]}"][str(i)] for i in range(settings.episodes)]
        for method in methods:
            own = [results[f"{name} {method}"][str(i)] for i in range(settings.episodes)]
            more = [a - b for a, b in zip(own, first, strict=True)]
            yield {
                "set": name, "method": method, "episodes": len(own), "accuracy": mean(own), "interval": interval(own),
                "gain": mean(more), "gain_interval": interval(more),
            }  # fmt: skip


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def interval(values: Sequence[float]) -> float:
    """Half of it; 0 of a single value."""
    return float(1.96 * np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class _Data:
    support: Array
    support_labels: Array
    query: Array
    query_labels: Array


class _Bench:
    """One job for each method, set back before every episode."""

    def __init__(self, model: Prototypical, ways: int, settings: Settings) -> None:
        self.model, self.ways, self.settings = model, ways, settings
        self.jobs: dict[str, tuple[Job, bytes]] = {}
        self.start = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}

    def data(self, images: ImageSet, episode: Episode) -> _Data:
        size, channels = self.settings.size, self.settings.channels
        support, query = (images.images(rows, size, channels) for rows in (episode.support, episode.query))
        return _Data(support, episode.support_labels, query, episode.query_labels)

    def accuracy(self, method: Any, data: _Data, number: int) -> float:
        """Of the queries; 0 if it diverged."""
        job = self._job("last_layer" if method == NONE else method, data)
        try:
            if method != NONE:
                self._learn(job, data, number)
        except NotFinite:
            return 0.0
        scores, _ = self._run(job, data.query, self._prototypes(job, data))
        return float((scores.argmax(1) == data.query_labels).mean())

    def plan(self, method: Any) -> dict[str, Any]:
        """Of its last episode."""
        plan = self.jobs[str(method)][0].plan
        return {
            "ram_bytes": plan.ram_bytes, "state_bytes": plan.state_bytes, "learned_parameters": plan.learned_parameters,
            "arena_bytes": dict(plan.arena_by_entry), "macs": dict(plan.cost.macs), "batch": plan.batch,
        }  # fmt: skip

    def _job(self, method: Any, data: _Data) -> Job:
        if str(method) not in self.jobs:
            job = self._compiled(method, data)
            self.jobs[str(method)] = job, bytes(job.engine.whole())
        job, start = self.jobs[str(method)]
        if "score" in job.program.entries:
            job.load_state_dict({name: value for name, value in self.start.items() if name in job.plan.learns})
        else:
            job.engine.set_all(start)
        job.lr = self.settings.lr
        return job

    def _compiled(self, method: Any, data: _Data) -> Job:
        import torch

        batch = self.settings.batch
        with torch.no_grad():
            width = self.model.backbone(torch.from_numpy(data.support[:1])).flatten(1).shape[1]
        example = torch.from_numpy(data.support[:1]).expand(batch, -1, -1, -1), torch.zeros(batch, self.ways, width)
        return api.compile(
            self.model, example, loss=prototype_loss, target=torch.zeros(batch, dtype=torch.int64),
            optimizer=Adam(self.settings.lr), method=[method, Update("scale")], seed=self.settings.seed,
            memory=Memory(budget=self.settings.budget, accumulate=True), kernels=self.settings.kernels,
        )  # fmt: skip

    def _learn(self, job: Job, data: _Data, number: int) -> None:
        """Pseudo-queries are the support set, changed; prototypes are made anew before each step."""
        rng = np.random.default_rng([self.settings.seed, number, 1])
        n = len(data.support)
        if "score" in job.program.entries:
            fixed = self._prototypes(job, data)
            job.select([augmented(data.support, rng), self._for(fixed, n)], data.support_labels)
        for _ in range(self.settings.steps):
            made = self._prototypes(job, data)
            loss = job.train_step([augmented(data.support, rng), self._for(made, n)], data.support_labels)
            if not math.isfinite(loss):
                raise NotFinite("the loss is not finite", help="--lr 0.0001")

    def _prototypes(self, job: Job, data: _Data) -> Array:
        none = np.zeros((self.ways, self._width(job)), np.float32)
        return prototypes(self._run(job, data.support, none)[1], data.support_labels, self.ways)

    def _run(self, job: Job, images: Array, made: Array) -> tuple[Array, Array]:
        scores, features = job.predict([images, self._for(made, len(images))])
        return scores, features

    @staticmethod
    def _width(job: Job) -> int:
        return int(job.program.entry_buffers("infer")[1].dims[-1])  # type: ignore[arg-type]

    @staticmethod
    def _for(made: Array, n: int) -> Array:
        return np.broadcast_to(made, (n, *made.shape))


__all__ = ["Settings", "compare", "rows"]
