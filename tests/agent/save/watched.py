"""An uploader over a folder in which a test plays the program, and what it has published."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter
from airflow_provider_ocidist.agent.save.carried import Carried
from airflow_provider_ocidist.agent.save.proofs import Moment
from airflow_provider_ocidist.agent.save.saving import SaveDeadline
from airflow_provider_ocidist.agent.save.uploads import CheckpointUploader, ProgramState, Undelivered
from airflow_provider_ocidist.job import Checkpoints
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoints import newest
from tests.agent.gangs import until


class Watched:
    """An uploader over two folders, and what it has published."""

    def __init__(
        self, root: Path, shards: object = None, *, carried: Carried | None = None, **changes: object
    ) -> None:
        self.folder, self.target = root / "checkpoints", root / "safe"
        self.folder.mkdir(exist_ok=True)
        (root / "meter").mkdir(exist_ok=True)
        self.meter = ProgressMeter(root / "meter")
        self.published: list[CheckpointRef] = []
        self.access = OciAccess(region="of-the-node")
        self.uploader = CheckpointUploader(
            self.folder,
            Checkpoints(uri=str(self.target), **changes),
            self.access,
            program=ProgramState(
                step=lambda: self.meter.progress.step,
                loss_at=lambda step: step / 10,
                announced=self.meter.announced,
            ),
            fence=Fence(attempt=1),
            shards=shards,
            on_published=self.published.append,
            carried=carried,
        )
        self.looked = 0
        look = self.uploader._look

        def counted() -> object:
            self.looked += 1
            return look()

        self.uploader._look = counted

    @property
    def steps(self) -> list[int | None]:
        return [reference.step for reference in self.published]

    def start(self) -> None:
        self.uploader.start()

    def end(self, moment: Moment = Moment.EXITED, limit: float = 10) -> Undelivered | None:
        return self.uploader.finish(moment, SaveDeadline(limit))

    def write(self, step: int, text: str = "weights") -> Path:
        """Write a checkpoint aside, and rename it when it is whole."""
        path = self.folder / f"step-{step}.txt"
        path.with_suffix(".tmp").write_text(text)
        return path.with_suffix(".tmp").rename(path)

    def begin(self, step: int, *names: str) -> Path:
        """Write some files of a folder that is a checkpoint."""
        place = self.folder / f"step-{step}"
        place.mkdir(exist_ok=True)
        for name in names:
            (place / name).write_text(f"{name} of it")
        return place

    def announce(self, **record: object) -> None:
        with self.meter.file.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def looks(self, count: int = 3) -> None:
        """Let it look at the folder so many times, and publish what it finds."""
        # The one that is under way may have begun before what it is to see; the one after shows that all are over.
        last = self.looked + count + 2
        until(lambda: self.looked >= last)

    def manifest(self) -> dict[str, object]:
        found = newest(str(self.target))
        assert found
        return json.loads(Path(found.uri, "manifest.json").read_text())

    def step(self, times: int = 1) -> bool:
        """Look and publish so many times, without the thread; return whether all went well at last."""
        well = True
        for _ in range(times):
            self.uploader._look()
            well = self.uploader._upload()
        return well
