"""The examples of the original NeuralDBG's documentation as one job: basic usage, inference, instability, data anomaly.

Its calls stand here as its users wrote them; only the data and what goes wrong (argv[1]) are ours. Prints JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.nn as nn
from neuraldbg import NeuralDbg

STEPS = 90
ONSET = 70


def fault_of(name: str, step: int, model: nn.Sequential, inputs: torch.Tensor) -> torch.Tensor:
    """What goes wrong at the onset; the inputs that the model gets."""
    if step == ONSET and name == "vanishing":
        for layer in (model[4], model[6]):  # a wrong line in a schedule of weights
            layer.weight.data.mul_(1e-5)
    if step >= ONSET and name == "data":
        inputs = inputs.clone()
        inputs[0, 0] = float("nan")
    return inputs


def main(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.MSELoss()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    target = nn.Linear(10, 1).requires_grad_(False)
    data = [torch.randn(32, 10) for _ in range(STEPS)]
    dataloader = [(x, target(x)) for x in data]

    with NeuralDbg(model, run=name) as dbg:
        for step, (inputs, targets) in enumerate(dataloader):
            optimizer.zero_grad()
            dbg.step = step
            inputs = fault_of(name, step, model, inputs)
            outputs = compiled(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            dbg.record_loss(loss.item())
            if name == "lr" and step == ONSET:
                optimizer.param_groups[0]["lr"] = 1e3
            optimizer.step()

    kind = {"vanishing": "vanishing_gradients", "lr": "optimizer_instability", "data": "data_anomaly"}[name]
    explanations = dbg.explain_failure(kind)
    return {
        "explanations": [str(one) for one in explanations],
        "descriptions": [one.description for one in explanations],
        "hypotheses": [one.kind for one in dbg.get_causal_hypotheses()],
        "default": len(dbg.explain_failure()),
        "chain": [link.site for link in dbg.trace_causal_chain(kind)],
        "couplings": len(dbg.detect_coupled_failures()),
        "roots": [(one.kind, one.module, one.step) for one in dbg.get_root_causes()],
        "events": [(one.step, one.layer_name, one.phase, one.to_state) for one in dbg.get_events()],
        "package": json.loads(open(dbg.export_aquarium_package(sys.argv[2])).read()),
        "graph": dbg.export_mermaid_causal_graph(),
        "health": dbg._classify_gradient_health(0.0).value,
        "transition": dbg._detect_gradient_transition(0.0, float("nan")),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
