"""Silence: how many seconds without a heartbeat mean that a node is cut off, lost or gone."""

from __future__ import annotations

SILENT_AFTER = 15.0
"""Seconds without a heartbeat after which a node may be cut off from the store; it is lost if its machine does not
answer either. torch alone takes 925 s for a silent partition."""
LOST_AFTER = 30.0
"""Seconds without a heartbeat after which a node is lost though its machine answers: its agent may be gone, or wait for
the store."""
GONE_AFTER = 60.0
"""Seconds without a heartbeat after which a node counts as ended: its files are not waited for any more."""
OWN_TROUBLE = 6.0
"""Seconds since this node's own last report after which it judges no others: the store may be at fault."""
