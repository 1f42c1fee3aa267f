"""The type checker that tests switch on for rookery."""

from __future__ import annotations

import jax
from beartype import BeartypeConf, BeartypeHintOverrides, beartype

# A swept entry of a config is an array while the program is traced, wherever the config says float.
check = beartype(conf=BeartypeConf(hint_overrides=BeartypeHintOverrides({float: float | int | jax.Array})))
