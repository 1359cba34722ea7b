"""Train the same model on one node and on three, and compare steps, time and accuracy in a table and a plot.

Use it before you pay for more nodes. With N nodes each process trains about 1/N of the steps, and the accuracy should
be the same. The time shrinks less, because nodes wait for each other. Table and plot are in the work directory.
Another section `backend` in `jobs/compare.yaml`, with its connection in HOME, compares the nodes of another home.
"""

from __future__ import annotations

import json

from airflow.sdk import DAG, Param, task

from airflow_provider_ocidist.hooks import OciHook
from airflow_provider_ocidist.operators import DistributedTrainingOperator

HOME = "oci_default"
"""Connection of the home that jobs/compare.yaml names; its work_dir holds the models, the table and the plot."""
MEASURES = {"steps of each process": "#4878a8", "seconds": "#d08030", "accuracy": "#509050"}


def plot(rows: list[dict]) -> str:
    """Return bars as SVG: for each measure a group with one bar for each number of nodes."""
    drawn = []
    for group, (measure, colour) in enumerate(MEASURES.items()):
        left, highest = 20 + group * 80 * len(rows), max(row[measure] for row in rows) or 1
        drawn.append(f'<text x="{left}" y="180">{measure}</text>')
        for number, row in enumerate(rows):
            x, height = left + 65 * number, 120 * row[measure] / highest
            place = f'x="{x}" y="{140 - height:.0f}" width="60" height="{height:.0f}"'
            drawn.append(f'<rect {place} fill="{colour}"/>')
            drawn.append(f'<text x="{x}" y="{135 - height:.0f}">{row[measure]:g}</text>')
            drawn.append(f'<text x="{x}" y="158">nodes: {row["nodes"]}</text>')
    size = f'width="{40 + 80 * len(rows) * len(MEASURES)}" height="200"'
    style = 'font-size="12" font-family="sans-serif"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(drawn)}</svg>'


with DAG(
    dag_id="compare_nodes",
    description="One node beside three: steps of each process, time, accuracy",
    schedule=None,
    catchup=False,
    params={
        "nodes": Param(
            [1, 3], type="array", items={"type": "integer", "minimum": 1}, title="Nodes to compare"
        ),
        "epochs": Param(6, type="integer", minimum=1, title="Epochs, the same for all"),
        "images": Param(1500, type="integer", minimum=100, maximum=1500, title="Images to learn from"),
    },
    tags=["example", "ocidist"],
) as dag:

    @task
    def candidates(params: dict, run_id: str) -> list[dict]:
        """Return what differs between the trainings: the nodes, and the place of the model."""
        return [
            {
                "nodes": nodes,
                "program.args.1": str(params["epochs"]),
                "outputs": [{"path": "outputs", "uri": OciHook(HOME).uri(f"compare/{run_id}/{nodes}/")}],
            }
            for nodes in params["nodes"]
        ]

    @task
    def compare(results: list[dict], candidates: list[dict], run_id: str) -> list[dict]:
        """Return a row for each number of nodes; write the rows and their plot beside the models."""
        rows = []
        for candidate, result in zip(candidates, results, strict=True):
            report = json.loads(OciHook(HOME).store(candidate["outputs"][0]["uri"]).read("report.json"))
            begun = min(node["started_at"] for node in result["nodes"])
            ended = max(node["finished_at"] for node in result["nodes"])
            rows.append(
                {
                    "nodes": len(result["nodes"]),
                    "steps of each process": report["steps"],
                    "seconds": round(ended - begun, 1),
                    "accuracy": round(report["accuracy"], 3),
                }
            )
            print(rows[-1])
        store = OciHook(HOME).store(f"compare/{run_id}")
        store.write("rows.json", json.dumps(rows, indent=2).encode())
        store.write("plot.svg", plot(rows).encode())
        return rows

    tried = candidates()
    train = DistributedTrainingOperator.partial(
        task_id="train",
        job="jobs/compare.yaml",
        conn_id=HOME,
        deferrable=True,
        max_active_tis_per_dagrun=1,  # one after the other: at the same time they would share processors
        map_index_template="{{ task.overrides['nodes'] }} nodes",
    ).expand(overrides=tried)
    compare(train.output, tried)
