"""Programs that are compiled as training compiles them, and which arrays they copy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

AS_TRAINED = {"xla_cpu_use_fusion_emitters": True}
"""Where buffers or speed matter: all other programs of the tests are compiled in haste (tests/conftest.py)."""
BYTES = {"f32": 4, "s32": 4, "u32": 4, "pred": 1}


def copies(compiled: Any, least: int) -> list[str]:
    """Copies of arrays of `least` bytes or more in a compiled program, inside its loops; entry and exit are not."""
    found = []
    for computation in re.split(r"\n\n", compiled.as_text()):
        if computation.lstrip().startswith("ENTRY"):
            continue
        for kind, shape in re.findall(r"= (\w+)\[([\d,]*)\]\S* copy\(", computation):
            if BYTES[kind] * int(np.prod([int(d) for d in shape.split(",") if d])) >= least:
                found.append(f"{kind}[{shape}]")
    return found
