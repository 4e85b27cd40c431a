"""How the two sides of the contract are brought to use verbs in the rig.

May import transport.testing.
"""

from __future__ import annotations

from typing import Any

import rig

from transport.testing.contract import Way

_VERBS: dict[str, Any] = {"providers": ("verbs", "tcp")}

TWO_HOSTS = Way("verbs", "rc", atomics=True, far={"listen": "10.8.0.1:0"}, launcher=rig.on("a"))
ONE_HOST = Way("verbs", "rc", atomics=True, near=_VERBS, far={**_VERBS, "listen": "10.8.1.1:0"})
