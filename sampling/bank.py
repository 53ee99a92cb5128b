"""The slot bank: sets of styles that are at hand for a pool's rows, loaded beside running steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from core.errors import InvalidInput
from core.recipe import StyleUse
from sampling import lora
from sampling.model import Model, PoolName
from sampling.packs import Pack, Placed, make_pack
from sampling.rows import Row
from sampling.style_files import Source, source_of

MAX_OVERTAKEN = 32  # rows that may pass one that waits for a slot, so that it is not passed for ever
Key = tuple[Source, ...]  # in canonical order, each once


@dataclass(frozen=True, slots=True)
class Wish:
    """A row that waits for its styles; a weight for each source of the key."""

    row: Row
    key: Key
    weights: tuple[float, ...]


class Bank:
    """Owned by the thread that steps; files are read in a thread of the bank's own.

    A slot holds one set of styles whatever the weights. It stays while rows use it; after that the least recently used
    leaves first. A row keeps what it started with, also when the file behind it is replaced.

    paths: style id to LoRA file; read at every use, so a catalogue may add and drop styles.
    notify: called from the loading thread when something was loaded, so that a device loop that sleeps wakes up.
    """

    def __init__(
        self,
        model: Model,
        paths: Mapping[str, Path],
        slots: int,
        notify: Callable[[], object],
        pool: PoolName | None = None,
    ) -> None:
        self._networks = model.networks(pool)
        self._device = model.device
        self._paths = paths
        self._count = slots
        self._notify = notify
        self._slots: dict[Key, Pack] = {}  # least recently used first
        self._pins: dict[str, Key] = {}  # by row
        self._waiting: dict[str, Wish] = {}  # by row, in order of arrival
        self._loads: dict[Key, Future[Pack]] = {}
        self._refused: list[tuple[Row, Exception]] = []
        self._overtaken = 0
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="styles")

    def close(self) -> None:
        self._loader.shutdown(wait=True, cancel_futures=True)

    def resident(self) -> tuple[str, ...]:
        """The styles at hand, each once; safe to call from any thread."""
        held = {source.path for key in list(self._slots) for source in key}
        return tuple(sorted(style_id for style_id, path in self._paths.items() if path in held))

    def enter(self, row: Row) -> None:
        """Takes up a row; it is ready at once where it has no styles or they are at hand."""
        row.placed = None
        if not row.styles:
            return
        try:
            key, weights = self._identify(row.styles)
        except InvalidInput as error:
            self._refused.append((row, error))
            return
        self._waiting[row.id] = Wish(row, key, weights)
        self._serve()

    def leave(self, row_id: str) -> None:
        """Lets go of a row's slot, or of its place in the queue."""
        self._waiting.pop(row_id, None)
        key = self._pins.pop(row_id, None)
        if key is not None and key in self._slots:
            self._slots[key] = self._slots.pop(key)

    def settle(self) -> list[tuple[Row, Exception]]:
        """Gives what was loaded to the rows that wait for it; the rows whose styles cannot be had, and why."""
        self._serve()
        refused, self._refused = self._refused, []
        return refused

    def _identify(self, styles: tuple[StyleUse, ...]) -> tuple[Key, tuple[float, ...]]:
        weights: dict[Source, float] = {}
        for use in styles:
            source = source_of(use.id, self._paths)
            weights[source] = weights.get(source, 0.0) + use.weight
        key = tuple(sorted(weights))
        return key, tuple(weights[source] for source in key)

    def _serve(self) -> None:
        """In order of arrival. Who waits for a slot holds up only those who need a new slot as well."""
        blocked = False
        for wish in list(self._waiting.values()):
            if wish.key not in self._slots:
                pack = self._loaded(wish)
                if pack is None:
                    continue
                if blocked or not self._make_room():
                    blocked = True
                    continue
                self._slots[wish.key] = pack.to(self._device)
                self._overtaken = 0
            elif blocked:
                if self._overtaken >= MAX_OVERTAKEN:
                    continue
                self._overtaken += 1
            self._place(wish)
        wanted = {wish.key for wish in self._waiting.values()}
        self._loads = {key: load for key, load in self._loads.items() if key in wanted or not load.done()}

    def _place(self, wish: Wish) -> None:
        del self._waiting[wish.row.id]
        pack = self._slots[wish.key] = self._slots.pop(wish.key)
        self._pins[wish.row.id] = wish.key
        wish.row.placed = Placed(pack, wish.weights)

    def _loaded(self, wish: Wish) -> Pack | None:
        """What was loaded for a row; None while it is loading, and when it failed, and the row with it."""
        load = self._loads.get(wish.key)
        if load is None:
            load = self._loads[wish.key] = self._loader.submit(self._load, wish.key)
            load.add_done_callback(lambda _: self._notify())
        if not load.done():
            return None
        error = load.exception()
        if error is None:
            return load.result()
        del self._waiting[wish.row.id]
        self._refused.append((wish.row, error if isinstance(error, Exception) else RuntimeError(str(error))))
        return None

    def _make_room(self) -> bool:
        if len(self._slots) < self._count:
            return True
        pinned = set(self._pins.values())
        spare = next((key for key in self._slots if key not in pinned), None)
        if spare is None:
            return False
        del self._slots[spare]
        return True

    def _load(self, key: Key) -> Pack:
        parts = [lora.read(source.path, self._networks).get(self._networks.name, {}) for source in key]
        pack = make_pack(parts, self._networks.dtype)
        return pack.pinned() if self._device.type == "cuda" else pack
