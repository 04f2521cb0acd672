"""Train GAT on Cora with many seeds, and compare the mean test accuracy with the paper's 83.0 ± 0.7 %.

``python experiments/gat_cora.py DATA``, where DATA holds ``cora.npz``: bag-of-words features of 2,708 papers (CSR),
their classes, the citations between them, and Planetoid's split. The training follows Veličković et al. 2018, section
3.3: Adam, a learning rate of 0.005, an L2 penalty of 0.0005, dropout 0.6, and early stopping when neither loss nor
accuracy on the validation nodes has improved for 100 epochs; the weights with the lowest validation loss are tested.
The accuracy of each seed is stored in ``runs``, so an interrupted run resumes with the next seed.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
import typer
from results import cached, command, spread, write_result
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn import functional

from regard import Neighbors
from regard.errors import RegardError
from regard.models import GAT, GATConfig

PATIENCE = 100
app = typer.Typer(pretty_exceptions_enable=False)
PUBLISHED = "83.0 ± 0.7 %, Veličković et al. 2018, table 2"


class Cora(NamedTuple):
    """Bag-of-words features of the papers, their classes, their citations, and the split."""

    features: Tensor
    labels: Tensor
    graph: Neighbors
    train: Tensor
    valid: Tensor
    test: Tensor


@app.command()
def main(
    data: Annotated[Path, typer.Argument(help="Folder with cora.npz.")],
    seeds: Annotated[int, typer.Option(min=2, help="Number of trainings.")] = 20,
    epochs: Annotated[int, typer.Option(min=1, help="Maximum number of epochs.")] = 10_000,
    run: Annotated[Path, typer.Option(help="Folder of the accuracy of each seed.")] = Path("runs/gat-cora"),
    output: Annotated[Path, typer.Option(help="Result file.")] = Path("docs/results/gat-cora.json"),
) -> None:
    """Train with each seed; write the mean and standard deviation of the test accuracy."""
    cora = load(data / "cora.npz")
    accuracies = []
    for seed in track(range(seeds), description="training", console=Console(stderr=True)):
        accuracy = cached(run / f"{seed}-of-{epochs}.json", lambda seed=seed: train(cora, seed, epochs))
        print(f"seed {seed}: {accuracy:.1f} %")
        accuracies.append(accuracy)
    reached = f"{spread(accuracies)} %, {seeds} seeds"
    by = command("gat_cora.py DATA", seeds=seeds, epochs=epochs)
    write_result(output, "GAT on Cora, test accuracy", reached, PUBLISHED, by, values=accuracies)
    print(reached)


def load(path: Path) -> Cora:
    """Read the graph, normalize each row of features to sum 1, and add self-loops."""
    with np.load(path) as file:
        stored = {name: torch.from_numpy(file[name].astype(np.int64)) for name in file}
    nodes = len(stored["labels"])
    features = torch.zeros(nodes, int(stored["num_features"]))
    rows = torch.arange(nodes).repeat_interleave(stored["feature_indptr"].diff())
    features[rows, stored["feature_indices"]] = 1.0
    features /= features.sum(1, keepdim=True).clamp(min=1)
    edges, loops = stored["edges"].T, torch.arange(nodes).expand(2, -1)
    graph = Neighbors(*torch.cat([edges, edges.flip(0), loops], dim=1))
    return Cora(features, stored["labels"], graph, *(stored[part] for part in ("train", "valid", "test")))


def train(cora: Cora, seed: int, epochs: int) -> float:
    """Train with one seed; return the test accuracy in percent."""
    torch.manual_seed(seed)
    model = GAT(GATConfig(cora.features.shape[1], int(cora.labels.max()) + 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    best, best_weights, waited = (float("inf"), 0.0), copy.deepcopy(model.state_dict()), 0
    for _ in range(epochs):
        model.train()
        logits = model(cora.features, cora.graph).logits
        optimizer.zero_grad()
        functional.cross_entropy(logits[cora.train], cora.labels[cora.train]).backward()
        optimizer.step()
        loss, accuracy = evaluate(model, cora, cora.valid)
        if loss <= best[0] or accuracy >= best[1]:
            if loss <= best[0]:
                best_weights = copy.deepcopy(model.state_dict())
            best, waited = (min(loss, best[0]), max(accuracy, best[1])), 0
        else:
            waited += 1
        if waited == PATIENCE:
            break
    model.load_state_dict(best_weights)
    return evaluate(model, cora, cora.test)[1]


@torch.no_grad()
def evaluate(model: GAT, cora: Cora, nodes: Tensor) -> tuple[float, float]:
    """Loss and accuracy in percent on some nodes."""
    logits = model.eval()(cora.features, cora.graph).logits[nodes]
    labels = cora.labels[nodes]
    accuracy = (logits.argmax(-1) == labels).double().mean()
    return float(functional.cross_entropy(logits, labels)), 100 * float(accuracy)


if __name__ == "__main__":
    try:
        app()
    except (RegardError, OSError) as error:
        sys.exit(f"gat_cora: {error}")
