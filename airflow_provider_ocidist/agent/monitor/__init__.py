"""While it trains: progress, hangs, peers, lease."""
