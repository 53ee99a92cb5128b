"""Stands in for a Triton server: what its Python backend promises, with every tensor held against config.pbtxt.

No Triton runs in these tests. Source: the README of triton-inference-server/python_backend.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from google.protobuf import json_format, text_format

KINDS = {
    "TYPE_FP32": np.dtype(np.float32),
    "TYPE_INT32": np.dtype(np.int32),
    "TYPE_INT64": np.dtype(np.int64),
    "TYPE_UINT8": np.dtype(np.uint8),
    "TYPE_STRING": np.dtype(np.object_),
}


def schema() -> Any:
    """Triton's own ModelConfig, as its client ships it; that package's __init__ would want gRPC."""
    home = importlib.util.find_spec("tritonclient")
    assert home is not None and home.submodule_search_locations
    path = Path(next(iter(home.submodule_search_locations))) / "grpc" / "model_config_pb2.py"
    return _module("triton_model_config_pb2", path).ModelConfig


def read_config(folder: Path) -> dict[str, Any]:
    """Raises: text_format.ParseError for what Triton would not read either."""
    message = text_format.Parse((folder / "config.pbtxt").read_text(encoding="utf-8"), schema()())
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError:
    INTERNAL, INVALID_ARG = "internal", "invalid argument"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        self._message, self.code = message, code

    def message(self) -> str:
        return self._message


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self.outputs, self._error = output_tensors or [], error

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class InferenceRequest:
    server: Server

    def __init__(self, model_name: str, requested_output_names: list[str], inputs: list[Tensor]) -> None:
        self.model_name, self.requested, self.inputs = model_name, requested_output_names, inputs
        self.cancelled = False

    def is_cancelled(self) -> bool:
        return self.cancelled

    def exec(self) -> InferenceResponse:
        return self.server.infer(self.model_name, [self])[0]


def _by_name(tensors: list[Tensor], name: str) -> Tensor | None:
    return next((tensor for tensor in tensors if tensor.name() == name), None)


class Server:
    """A loaded repository. calls: how many requests each call of a model's execute was handed, by model."""

    def __init__(self, repository: Path) -> None:
        self.configs = {folder.name: read_config(folder) for folder in sorted(repository.iterdir())}
        self.calls: dict[str, list[int]] = {name: [] for name in self.configs}
        InferenceRequest.server = self
        self._models = {name: self._load(repository / name, config) for name, config in self.configs.items()}

    def _load(self, folder: Path, config: dict[str, Any]) -> Any:
        model = _module(f"triton_{folder.name}", folder / "1" / "model.py").TritonPythonModel()
        kind = config["instance_group"][0]["kind"].removeprefix("KIND_")
        model.initialize(
            {
                "model_config": json.dumps(config),
                "model_instance_kind": kind,
                "model_instance_device_id": "0",
                "model_repository": str(folder),
                "model_version": "1",
                "model_name": folder.name,
            }
        )
        return model

    def request(self, model: str, **inputs: np.ndarray) -> InferenceRequest:
        wanted = [output["name"] for output in self.configs[model]["output"]]
        return InferenceRequest(model, wanted, [Tensor(name, array) for name, array in inputs.items()])

    def infer(self, model: str, requests: list[InferenceRequest]) -> list[InferenceResponse]:
        config = self.configs[model]
        batched = config["max_batch_size"] > 0
        for request in requests:
            _check(request.inputs, config["input"], batched)
        self.calls[model].append(len(requests))
        responses: list[InferenceResponse] = self._models[model].execute(requests)
        assert len(responses) == len(requests)
        for response in responses:
            if not response.has_error():
                _check(response.outputs, config["output"], batched)
        return responses


def _check(tensors: list[Tensor], ports: list[dict[str, Any]], batched: bool) -> None:
    """Names, types and shapes are those of the configuration."""
    known = {port["name"]: port for port in ports}
    names = {tensor.name() for tensor in tensors}
    assert names <= set(known) and {name for name, port in known.items() if not port.get("optional")} <= names
    for tensor in tensors:
        array, port = tensor.as_numpy(), known[tensor.name()]
        shape = array.shape[1:] if batched else array.shape
        dims = [int(dim) for dim in port["dims"]]
        assert array.dtype == KINDS[port["data_type"]], tensor.name()
        assert len(shape) == len(dims), tensor.name()
        assert all(dim in (-1, side) for dim, side in zip(dims, shape, strict=True)), tensor.name()


def backend_utils() -> ModuleType:
    """What `import triton_python_backend_utils` gives in Triton's processes."""
    module = ModuleType("triton_python_backend_utils")
    module.Tensor, module.TritonError = Tensor, TritonError  # type: ignore[attr-defined]
    module.InferenceRequest, module.InferenceResponse = InferenceRequest, InferenceResponse  # type: ignore[attr-defined]
    module.get_input_tensor_by_name = lambda request, name: _by_name(request.inputs, name)  # type: ignore[attr-defined]
    module.get_output_tensor_by_name = lambda response, name: _by_name(response.outputs, name)  # type: ignore[attr-defined]
    return module


def _module(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules.get(name) or importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
