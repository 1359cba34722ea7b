"""How a copy is carried out: lanes, files on their way, what an earlier attempt has finished."""
