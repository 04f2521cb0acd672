"""The Triton passes compared with float64: on a GPU, or in Triton's interpreter (``TRITON_INTERPRET=1``).

Run: ``TRITON_INTERPRET=1 python benchmarks/triton_check.py``.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from triton_calls import THREE, Case, Config, Problem, is_interpreted

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SMALL = Config(16, 32, 4, 2)
CASES = {
    "causal": Case(2, 2, 150, 150, 64, 64, torch.bfloat16, is_causal=True),
    "full, keys and value_dim differ, ALiBi": Case(1, 3, 37, 101, 128, 64, torch.bfloat16, False, has_alibi=True),
    "causal, rows without keys, head_dim 80": Case(1, 2, 90, 75, 80, 24, torch.float32, is_causal=True),
    "causal, more keys, ALiBi": Case(1, 2, 65, 129, 64, 80, torch.float32, True, has_alibi=True),
    "float16, blocks without rest": Case(1, 2, 128, 128, 128, 128, torch.float16, is_causal=False),
}


def reference(problem: Problem, with_measures: bool) -> dict[str, Tensor]:
    """All results in float64, with the whole matrix."""
    case = problem.case
    inputs = [part.double().requires_grad_() for part in (problem.query, problem.key, problem.value)]
    query, key, value = inputs
    scores = query @ key.mT * problem.scale
    at = torch.arange(case.queries, device=query.device)[:, None] + case.keys - case.queries
    distance = (at - torch.arange(case.keys, device=query.device)).abs()
    if case.has_alibi:
        scores = scores - problem.slopes.double()[:, None, None] * 0.6931471805599453 * distance
    if case.is_causal:
        scores = scores.masked_fill(torch.arange(case.keys, device=query.device) > at, -torch.inf)
    lse = scores.logsumexp(-1)
    log_weights = scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]
    weights = log_weights.exp()
    output, received = weights @ value, weights.sum(-2)
    entropy = -(weights * log_weights.masked_fill(scores == -torch.inf, 0.0)).sum(-1)  # entr has no gradient at 0
    loss = (output * problem.d_output.double()).sum()
    if with_measures:
        loss = loss + (entropy * problem.d_entropy.double()).sum() + (received * problem.d_received.double()).sum()
    gradients = dict(zip(("d_query", "d_key", "d_value"), torch.autograd.grad(loss, inputs), strict=True))
    rows = {"entropy": entropy, "max": weights.amax(-1), "distance": (weights * distance).sum(-1)}
    return {"output": output, "lse": lse, "received": received} | rows | gradients


def check(case: Case, device: str, config: Config = SMALL) -> dict[str, float]:
    """The largest difference of each result, relative to its largest entry."""
    torch.manual_seed(0)
    if is_interpreted() and case.dtype == torch.bfloat16:  # whose products the interpreter gets wrong
        case = replace(case, dtype=torch.float16)
    problem = Problem(case, device)
    expected = {with_measures: reference(problem, with_measures) for with_measures in (False, True)}
    errors: dict[str, float] = {}

    def compare(label: str, name: str, found: Tensor, with_measures: bool = True) -> None:
        right = expected[with_measures][name].detach()
        hidden = right == -torch.inf
        same = torch.equal(hidden, found == -torch.inf)
        difference = (found.double() - right).masked_fill(hidden, 0.0).abs().max() / right.masked_fill(
            hidden, 0
        ).abs().max()
        errors[label] = difference.item() if same else torch.inf

    def run(name: str) -> None:
        problem.call(name).run(config)

    measured = dict(zip(("entropy", "max", "distance"), problem.rows, strict=True))
    for name in ("forward", "forward: entropy", f"forward: {THREE}", "rows: entropy", f"rows: {THREE}"):
        for result in (*problem.rows, *([problem.output, problem.lse] if name.startswith("forward") else [])):
            result.fill_(torch.nan)
        run(name)
        if name.startswith("forward"):
            compare(f"{name} output", "output", problem.output)
            compare(f"{name} lse", "lse", problem.lse)
        for measure, found in measured.items():
            if measure in name.partition(": ")[2]:
                compare(f"{name} → {measure}", measure, found)
    problem.received.fill_(torch.nan)
    run("columns")
    compare("columns", "received", problem.received)
    for suffix in ("", ": measures"):
        for result in (problem.d_query, problem.d_key, problem.d_value, problem.term, problem.received_mean):
            result.fill_(torch.nan)
        for name in (*(["rows: mass"] if suffix else []), "terms", "backward keys", "backward queries"):
            run(name if name.startswith("rows") else name + suffix)
        for name in ("d_query", "d_key", "d_value"):
            compare(f"backward{suffix} {name}", name, getattr(problem, name), bool(suffix))
    return errors


def check_all(device: str) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Errors of all cases, and a line for each that is above its dtype's tolerance (NaN is)."""
    errors = {name: check(case, device) for name, case in CASES.items()}
    failures = [
        f"{name}: {what}: {error:.2g}"
        for name, found in errors.items()
        for what, error in found.items()
        if not error <= TOLERANCES[CASES[name].dtype]
    ]
    return errors, failures


if __name__ == "__main__":
    found, wrong = check_all("cpu" if is_interpreted() else "cuda")
    for case_name, differences in found.items():
        print(
            case_name, f"{max(differences.values()):.2g}", {name: f"{error:.1e}" for name, error in differences.items()}
        )
    print("failures:", wrong or "none")
