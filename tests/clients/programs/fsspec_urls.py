"""Libraries that know nothing of OCI but that fsspec opens `oci://`."""

import sys

import fsspec
import pandas as pd
import torch

base = sys.argv[1]
folder = fsspec.filesystem("oci")

table = pd.DataFrame({"number": range(1000), "text": ["ü"] * 1000})
table.to_csv(f"{base}/table.csv", index=False)
assert pd.read_csv(f"{base}/table.csv").equals(table)

weights = {"weight": torch.arange(2**20)}
with fsspec.open(f"{base}/deep/weights.pt", "wb") as file:
    torch.save(weights, file)
with fsspec.open(f"{base}/deep/weights.pt", "rb") as file:
    assert torch.equal(torch.load(file)["weight"], weights["weight"])

names = sorted(name.rpartition("/")[2] for name in folder.find(base))
assert names == ["table.csv", "weights.pt"], names
folder.copy(f"{base}/table.csv", f"{base}/copy.csv")
# A copy is done some time after OCI has accepted it.
while not folder.exists(f"{base}/copy.csv"):
    folder.invalidate_cache()
folder.rename(f"{base}/copy.csv", f"{base}/renamed.csv")
assert folder.info(f"{base}/renamed.csv")["size"] == folder.info(f"{base}/table.csv")["size"]
folder.rm(base, recursive=True)
assert not folder.exists(f"{base}/table.csv")
print("all well")
