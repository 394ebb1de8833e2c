"""The engine's side: see the modules of the package for what it is made of."""

from typing import Callable, Iterator, Optional, Sequence, Tuple, TypedDict, Union

import numpy as np
import numpy.typing as npt

__version__: str

Progress = Optional[Callable[[int], object]]
Columns = dict[str, npt.NDArray[np.generic]]

class Error(ValueError):
    file: Optional[str]
    record: Optional[int]
    offset: Optional[int]

class Source:
    @staticmethod
    def file(
        path: str,
        *,
        format: Optional[str] = None,
        columns: Optional[str] = None,
        separator: Optional[str] = None,
        time_unit: str = "1s",
        offset_unit: str = "1",
        size_unit: str = "1",
        lenient: bool = False,
        block_size: Optional[int] = None,
        key_size: Optional[int] = None,
        event: str = "queue",
    ) -> Source: ...
    @staticmethod
    def synth(
        pattern: str,
        *,
        keys: int,
        requests: int,
        alpha: float,
        phase: int,
        mix: str,
        rate: int,
        writes: float,
        seed: int,
    ) -> Source: ...
    @staticmethod
    def arrays(columns: dict[str, Optional[npt.NDArray[np.generic]]], name: str) -> Source: ...
    @property
    def name(self) -> str: ...
    @property
    def block_bytes(self) -> Optional[int]: ...
    @property
    def only_once(self) -> bool: ...
    def check_sized(self) -> None: ...
    def batches(self, size: int) -> Batches: ...
    def info(self, progress: Progress = None) -> str: ...

class Batches:
    def __iter__(self) -> Iterator[Columns]: ...
    def __next__(self) -> Columns: ...

class Curve:
    def __init__(self, requests: float, sizes: npt.NDArray[np.uint64], misses: npt.NDArray[np.float64]) -> None: ...
    @staticmethod
    def shared(curves: Sequence[Curve]) -> Curve: ...
    @staticmethod
    def partitioned(curves: Sequence[Curve]) -> Curve: ...
    @property
    def requests(self) -> float: ...
    def points(self) -> Tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]: ...
    def misses_at(self, sizes: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]: ...
    def miss_ratio_at(self, sizes: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]: ...
    def marginal(self, size: int, blocks: int) -> float: ...
    def size_for(self, misses: float) -> Optional[int]: ...
    def working_set(self, slack: float) -> int: ...
    def hull(self) -> Curve: ...
    def scaled_to(self, requests: float) -> Curve: ...
    def stretched(self, factor: float) -> Curve: ...

class _Estimated(TypedDict):
    requests: int
    writes: int
    footprint_blocks: Optional[int]
    footprint_exact: bool
    sizes: npt.NDArray[np.uint64]
    simulated: bool
    zipf: Optional[dict[str, float]]
    windows: Optional[dict[str, npt.NDArray[np.uint64]]]

class _Divided(TypedDict):
    parts: list[int]
    equal: list[int]
    proportional: list[int]
    misses: float
    equal_misses: float
    proportional_misses: float
    shared_queue_misses: float

def policies(list: str) -> list[str]: ...
def formats() -> list[Tuple[str, str]]: ...
def size_bytes(text: str) -> int: ...
def footprint(source: Source, *, limit: Optional[int] = None, progress: Progress = None) -> int: ...
def simulate(
    source: Source,
    *,
    policies: Sequence[str],
    sizes: Sequence[Union[int, str]],
    block_bytes: int,
    memory_bytes: int,
    footprint: Optional[int] = None,
    warm_up: int = 0,
    limit: Optional[int] = None,
    jobs: Optional[int] = None,
    progress: Progress = None,
) -> Tuple[str, Optional[BaseException]]: ...
def cells(sizes: Sequence[Union[int, str]], *, block_bytes: int, footprint: Optional[int]) -> list[Tuple[str, int]]: ...
def blocks(sizes: Sequence[Union[int, str]], block_bytes: int, footprint: Optional[int]) -> list[int]: ...
def estimate(
    source: Source,
    *,
    method: str,
    policy: str,
    sizes: Sequence[Union[int, str]],
    block_bytes: int,
    rate: float,
    samples: Optional[int],
    seed: int,
    of: str,
    window: Optional[str],
    zipf: bool,
    progress: Progress,
) -> Tuple[Curve, _Estimated]: ...
def divide(tenants: Sequence[Tuple[str, Curve, int, Optional[int]]], total: int, *, method: str) -> _Divided: ...
