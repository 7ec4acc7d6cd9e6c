"""The devices that settings name, and the blocks of layers that a model gets on several of them.

`model.device_map` spreads one model. Every device has a block of layers of about the same number. The first also has the
embedding and the unembedding, which are often the same weights, and the last the final norm. `engine.devices` copies a model
instead (`circuits.engine.sharded`). Both take a number of devices or their names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from results_io import UserError

OWN = "model.device"  # the setting of the device that the others begin with
MOST_SHARES = 1024  # of a device that is no GPU and has no number


def device_of(settings: Mapping[str, Any], setting: str = OWN) -> str:
    """The requested device, by default the GPU if there is one. UserError naming `setting` if this machine does not have it."""
    name = settings.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        if setting == OWN:
            raise UserError(f"{OWN}={name} is not on this machine; use {OWN}=cpu") from error
        raise UserError(
            f"{setting} names {name}, which is not on this machine; name devices that are, or leave it out"
        ) from error
    return name


def devices_of(asked: object, own: torch.device, setting: str = "engine.devices") -> tuple[torch.device, ...]:
    """The devices that a setting asks for, the model's `own` first: `asked` is their number, their names, or null for one.

    A device may be named several times. Raises UserError for anything else, for devices that this machine lacks, and for names
    that do not begin with `own`.
    """
    if asked is None:
        return (own,)
    if isinstance(asked, int) and not isinstance(asked, bool):
        there = torch.cuda.device_count() if own.type == "cuda" else None
        most = MOST_SHARES if there is None else there
        if not 1 <= asked <= most:
            known = (
                "of which there are as many as copies fit the memory" if there is None else f"of which {there} are here"
            )
            raise UserError(f"{setting}={asked} is no number of {own.type} devices, {known}; use 1 to {most} of them")
        start = own.index or 0
        return tuple(torch.device(own.type, (start + n) % there) if there else own for n in range(asked))
    if not isinstance(asked, Sequence) or isinstance(asked, str) or not asked:
        raise UserError(f"{setting}={asked} is neither a number nor a list of devices; use 2 or [cuda:0,cuda:1]")
    named = tuple(torch.device(device_of({"device": str(name)}, setting)) for name in asked)
    if not _same(named[0], own):
        raise UserError(
            f"{setting}={list(asked)} begins with {named[0]} and the model is on {own}; name the model's own device first"
        )
    return (own, *named[1:])


def spread_over(settings: Mapping[str, Any]) -> tuple[torch.device, ...]:
    """The devices of `model.device_map` without repetition, the model's own first; that one alone if it is null.

    Raises UserError for a list that does not begin with the model's own device, for devices of several kinds, since libraries
    that load weights keep those of `cpu` beside a GPU outside the model, and as `devices_of`.
    """
    own, asked = torch.device(device_of(settings)), settings.get("device_map")
    if isinstance(asked, Sequence) and not isinstance(asked, str) and asked:
        first = torch.device(device_of({"device": str(asked[0])}, "model.device_map"))
        if settings.get("device") and not _same(first, own):
            raise UserError(
                f"model.device_map={list(asked)} begins with {first} and model.device is {own}; name the same device first, or "
                "leave model.device out"
            )
        own = first
    found = tuple(dict.fromkeys(map(_with_index, devices_of(asked, own, "model.device_map"))))
    if other := next((device for device in found if device.type != own.type), None):
        raise UserError(
            f"model.device_map={[str(device) for device in found]} has {own} and {other}, devices of two kinds; name devices "
            "of one kind, or use model.device=cpu"
        )
    return found


def _same(one: torch.device, other: torch.device) -> bool:
    return (one.type, one.index or 0) == (other.type, other.index or 0)


def _with_index(device: torch.device) -> torch.device:
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def blocks_of(n_layers: int, devices: Sequence[torch.device]) -> list[torch.device]:
    """The device of each layer: consecutive blocks whose numbers of layers differ by at most one.

    Of more devices than layers, the first `n_layers` have one each and the others nothing.
    """
    some = devices[:n_layers]
    return [some[layer * len(some) // n_layers] for layer in range(n_layers)]


def modules_of(folder: Path, n_layers: int, devices: Sequence[torch.device]) -> dict[str, str]:
    """{name of a module of the plain model: device}, as transformers' `device_map`; every weight belongs to one of them.

    The model is built without weights. UserError if no list of its modules has `n_layers` layers.
    """
    return _places(_without_weights(folder), folder, n_layers, devices)


def parameters_on(folder: Path, n_layers: int, devices: Sequence[torch.device]) -> Counter[str]:
    """The number of parameters that `modules_of` puts on each device. UserError as there."""
    plain, found = _without_weights(folder), Counter[str]()
    places = _places(plain, folder, n_layers, devices)
    for name, weight in plain.named_parameters():
        module = next(one for one in places if name == one or name.startswith(f"{one}."))
        found[places[module]] += weight.numel()
    return found


def _without_weights(folder: Path) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))


def _places(plain: Any, folder: Path, n_layers: int, devices: Sequence[torch.device]) -> dict[str, str]:
    lists = [
        name for name, part in plain.named_modules() if isinstance(part, torch.nn.ModuleList) and len(part) == n_layers
    ]
    if not lists:
        raise UserError(
            f"the model in {folder} has no list of {n_layers} layers that model.device_map could spread; leave it out"
        )
    blocks = blocks_of(n_layers, devices)
    found = {f"{lists[0]}.{layer}": str(device) for layer, device in enumerate(blocks)}
    parts = lists[0].split(".")
    for depth, on_the_way in enumerate(parts):
        above = plain.get_submodule(".".join(parts[:depth]))
        names = [name for name, _ in [*above.named_parameters(recurse=False), *above.named_children()]]
        after = set(names[names.index(on_the_way) + 1 :]) if depth == len(parts) - 1 else set()
        for name in set(names) - {on_the_way}:
            final_norm = name in after and any(True for _ in above.get_submodule(name).parameters())
            found[".".join([*parts[:depth], name])] = str(blocks[-1] if final_norm else devices[0])
    return found
