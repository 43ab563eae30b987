"""Which bytes each weight lies in: the file's own, a copy in large pages, or a device's memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from llamapy.backend.backend import Buffer, BufferType
from llamapy.gguf.header import TensorInfo
from llamapy.graph import PARAM, Tensor
from llamapy.quants import codec
from llamapy.runtime import backends, pages
from llamapy.runtime.pages import Bytes

MAPPED = BufferType(
    "mapped", alignment=32
)  # the bytes of a file, mapped or read: nobody writes there


class Placement:
    """Layers from `first` on go to the device `name` ("" for none); layer n_layer is the output."""

    def __init__(self, first: int, name: str, n_layer: int) -> None:
        self.first, self.name, self.n_layer = first, name, n_layer

    def load(self, file: Any, wanted: Iterable[str], *, copy: bool = False) -> dict[str, Tensor]:
        """{name: tensor with memory} for the wanted tensors of the file. copy: those of the CPU may
        be read into large pages."""
        infos = [file.tensor(name) for name in wanted]
        here = [info for info in infos if not self.on_device(info.name)]
        read = pages.read(file, here) if copy else {}
        tensors = {info.name: self._in_file(file, info, read.get(info.name)) for info in infos}
        if self.name:
            self._tie_on_device(tensors)
            self._to_device([t for name, t in tensors.items() if self.on_device(name)])
        return tensors

    def on_device(self, name: str) -> bool:
        """Whether the tensor of this name belongs to a layer of the device."""
        return bool(self.name) and self._layer(name) >= self.first

    def _layer(self, name: str) -> int:
        if name.startswith("blk."):
            return int(name.split(".")[1])
        return self.n_layer if name.startswith("output") else -1

    def _in_file(self, file: Any, info: TensorInfo, read: Bytes | None) -> Tensor:
        tensor = Tensor(codec.get(info.type_id), info.ne, name=info.name, flags=PARAM)
        data = file.bytes(info) if read is None else read
        if max(tensor.ne[1:]) == 1 and tensor.kind.name in ("f16", "bf16"):
            return _as_float32(tensor, data)
        Buffer(MAPPED, data, weights=True).place(tensor, 0)
        return tensor

    def _tie_on_device(self, tensors: dict[str, Tensor]) -> None:
        """The output made of the embeddings needs them twice: the device's copy is
        `output.weight`."""
        table = tensors.get("token_embd.weight")
        if table is None or "output.weight" in tensors or self.first > self.n_layer:
            return
        tied = Tensor(table.kind, table.ne, name="output.weight", flags=PARAM)
        tied.buffer, tied.data = table.buffer, table.data
        tensors["output.weight"] = tied

    def _to_device(self, tensors: list[Tensor]) -> None:
        """Copy the tensors into one buffer of the device."""
        backend = backends.make(self.name)
        step = backend.buffer_type.alignment
        sizes = [-(-t.n_bytes // step) * step for t in tensors]
        buffer = backend.allocate(sum(sizes))
        buffer.weights = True
        offset = 0
        for tensor, size in zip(tensors, sizes):
            data = tensor.buffer.owner.view(np.uint8).reshape(-1)[: tensor.n_bytes]
            buffer.place(tensor, offset)
            backend.set_tensor(tensor, data)
            offset += size


def _as_float32(tensor: Tensor, data: np.ndarray[Any, Any]) -> Tensor:
    """Norms and biases in half precision, as the ops want them."""
    values = tensor.kind.dequantize(data.view(tensor.kind.block)).reshape(-1)
    wide = Tensor("f32", tensor.ne, name=tensor.name, flags=PARAM)
    Buffer(MAPPED, np.ascontiguousarray(values), weights=True).place(wide, 0)
    return wide
