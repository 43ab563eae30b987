"""llamapy warmup: compile kernels ahead, so that no later start has to wait for them."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from llamapy.cli import options

All = Annotated[bool, Option("--all", help="For every op and type, not for one model only.")]


def main(
    model: options.ModelPath = None,
    everything: All = False,
    ctk: options.TypeK = "f16",
    ctv: options.TypeV = "f16",
    json: options.Json = False,
) -> None:
    """Compile the kernels that a model needs (--all: any model), in several processes."""
    from llamapy.cli import console
    from llamapy.cli.running import open_model
    from llamapy.core.errors import UsageError
    from llamapy.tasks import warmup

    if everything and model is not None:
        raise UsageError("-m and --all exclude each other")
    with console.progress("compiling kernels", unit="kernels") as tick:
        if everything:
            found = warmup.of_all(report=lambda name, done, total: tick(done, total))
        else:
            opened = open_model(model)
            found = warmup.of_model(
                opened,
                type_k=ctk,
                type_v=ctv,
                report=lambda name, done, total: tick(done, total),
            )
    if json:
        console.json({"kernels": found.n_kernels, "compiled": found.n_compiled})
        return
    console.out().print(f"{found.n_kernels} kernels, {found.n_compiled} compiled now")
