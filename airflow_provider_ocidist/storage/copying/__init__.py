"""How a copy is carried out: lanes, files in transfer, an earlier attempt's results."""
