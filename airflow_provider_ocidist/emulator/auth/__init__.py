"""Who may call: signatures and the tokens that stand for keys."""
