#!/usr/bin/env python3
"""Runs the health checks of these examples against resources in every state (PyPI pyyaml, lupa, cel-python)."""

from pathlib import Path

import celpy
import lupa.lua51
import yaml
from celpy.adapter import json_to_cel

HERE = Path(__file__).parent
NEW = 2


def resource(observed=None, **conditions):
    """An Agent of generation 2 with these conditions; observed None: without status."""
    found = {"metadata": {"generation": NEW}}
    if observed is not None:
        conditions = [{"type": t, "status": s, "reason": "Why", "message": "because"} for t, s in conditions.items()]
        found["status"] = {"observedGeneration": observed, "conditions": conditions}
    return found


# What, resource, health for Argo CD, (failed, current) for Flux; None: the expression meets no such field and Flux waits.
CASES = [
    ("no status", resource(), "Progressing", (None, None)),
    ("an older generation", resource(1, Accepted="True", Ready="True"), "Progressing", (False, False)),
    ("an older generation, refused", resource(1, Accepted="False", Ready="False"), "Progressing", (False, False)),
    ("ready", resource(NEW, Accepted="True", Ready="True"), "Healthy", (False, True)),
    ("not ready", resource(NEW, Accepted="True", Ready="False"), "Progressing", (False, False)),
    ("ready unknown", resource(NEW, Accepted="True", Ready="Unknown"), "Progressing", (False, False)),
    ("refused", resource(NEW, Accepted="False", Ready="False"), "Degraded", (True, False)),
    ("refused, the last one runs", resource(NEW, Ready="True", Accepted="False"), "Degraded", (True, True)),
]


def argo(script, obj):
    lua = lupa.lua51.LuaRuntime()
    health = lua.execute(f"return function(obj)\n{script}\nend")(lua.table_from(obj, recursive=True))
    assert health.message, "a health without a message"
    return health.status


def flux(expression, obj):
    environment = celpy.Environment()
    try:
        return bool(environment.program(environment.compile(expression)).evaluate({k: json_to_cel(v) for k, v in obj.items()}))
    except celpy.CELEvalError:
        return None


def main():
    config = yaml.safe_load((HERE / "argocd/argocd-cm.yaml").read_text())
    script = yaml.safe_load(config["data"]["resource.customizations"])["outrigger.dev/*"]["health.lua"]
    documents = list(yaml.safe_load_all((HERE / "flux/outrigger.yaml").read_text()))
    checks = next(d for d in documents if d["kind"] == "Kustomization")["spec"]["healthCheckExprs"][0]
    assert len(list(yaml.safe_load_all((HERE / "argocd/applications.yaml").read_text()))) == 2
    failed = 0
    for what, obj, health, verdict in CASES:
        seen = argo(script, obj), (flux(checks["failed"], obj), flux(checks["current"], obj))
        good = seen == (health, verdict)
        failed += not good
        print(f"{'ok   ' if good else 'FAIL '} {what}: {seen}")
    print(f"{len(CASES) - failed} passed, {failed} failed")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
