"""`start_ray`: Ray in this process: the one that is named, one that runs on this machine, or one that starts now."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from reap import optional
from reap.errors import OptionError, text_of

ANSWER = 5.0
"""Seconds that a head has to accept a connection, where its address is one that `ray start` wrote down."""


def start_ray(user: str, config: Mapping[str, Any], started_here: Mapping[str, Any]) -> None:
    """Call `ray.init`; without an address it joins the cluster that `RAY_ADDRESS` names, or one that runs here, or starts one.

    Where `ray start` wrote an address down for all programs of this machine and nobody answers there, that is said at once;
    otherwise Ray tries an address that does not answer for some minutes.

    Args:
        user: who needs Ray, for errors.
        config: arguments of `ray.init`.
        started_here: more of them, for a Ray that may have to be started.

    Raises:
        OptionError: there is no Ray at the address, or none can be started.
    """
    address = config.get("address") or os.environ.get("RAY_ADDRESS") or ""
    if not address:
        _refuse_address_left_behind(user, config.get("_temp_dir"))
    try:
        optional.load("ray", user).init(**{**({} if address else started_here), **config})
    except (ConnectionError, RuntimeError, TypeError, ValueError) as error:
        source = 'ray_init_config["address"]' if config.get("address") else "RAY_ADDRESS"
        place = f" at {address}, which is {source}" if address else ""
        raise OptionError(f"ray_init_config: Ray could not be reached or started{place}: {text_of(error)}") from error


def _refuse_address_left_behind(user: str, folder: str | None) -> None:
    """Raise OptionError where nobody listens at the address that is in Ray's file.

    Args:
        user: who needs Ray.
        folder: Ray's folder for temporary files; None for its own choice.
    """
    path = Path(optional.load("ray._private.utils").get_ray_address_file(folder))
    with suppress(FileNotFoundError):
        address = path.read_text(encoding="utf-8").strip()
        host, _, port = address.rpartition(":")
        if not port.isdecimal():  # Ray says what is wrong with it
            return
        try:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()
        except OSError as error:
            raise OptionError(
                f"{user}: no Ray answers at {address} ({text_of(error)}). That address is in {path}, where a head that was "
                "killed has left it. Remove the file, and a Ray is started here; or name the one to use: "
                'ray_init_config={"address": ...} or RAY_ADDRESS, where "local" starts one'
            ) from error
