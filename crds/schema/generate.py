#!/usr/bin/env python3
"""generate.py OPENAPI.json > pod-template.json: the structural schema of a PodTemplateSpec, without descriptions.

OPENAPI.json is what `kubectl get --raw /openapi/v3/api/v1` prints, from the newest Kubernetes that Outrigger supports.
References are inlined, prose and server-side hints dropped, and the bounds added that the rules of our resources need.
"""
import json
import sys

DROPPED = {"description", "x-kubernetes-patch-strategy", "x-kubernetes-patch-merge-key", "x-kubernetes-unions"}
# Not for a template that only a controller fills in.
SKIPPED = {"io.k8s.api.core.v1.PodSpec": {"ephemeralContainers"}}
PLAIN = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
    },
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
    },
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": {"type": "string", "format": "date-time"},
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": {"type": "object"},
}
# Rules in CEL have a cost budget, so what they walk over needs a bound.
MAX_ITEMS = {"containers": 16, "initContainers": 16, "volumes": 64, "ports": 32}
NAME_LENGTH = 63


def main():
    schemas = json.load(open(sys.argv[1]))["components"]["schemas"]

    def inline(node, owner=None):
        if "$ref" in node:
            return expand(node["$ref"].rpartition("/")[2])
        if "allOf" in node and len(node["allOf"]) == 1 and "$ref" in node["allOf"][0]:
            return inline(node["allOf"][0])
        out = {}
        for key, value in node.items():
            if key in DROPPED or (key == "default" and value in ({}, "", 0)):
                continue
            if key == "properties":
                skipped = SKIPPED.get(owner, ())
                out[key] = {n: inline(p) for n, p in sorted(value.items()) if n not in skipped}
                for name, prop in out[key].items():
                    if name in MAX_ITEMS and prop.get("type") == "array":
                        prop["maxItems"] = MAX_ITEMS[name]
            elif key in ("items", "additionalProperties") and isinstance(value, dict):
                out[key] = inline(value)
            else:
                out[key] = value
        if out.get("x-kubernetes-list-type") == "map":
            for name in out["x-kubernetes-list-map-keys"]:
                item = out["items"]
                if name not in item.get("required", []) and "default" not in item["properties"][name]:
                    item["required"] = sorted([*item.get("required", []), name])
                if item["properties"][name].get("type") == "string":
                    item["properties"][name]["maxLength"] = NAME_LENGTH if name == "name" else 253
        return out

    def expand(name):
        return json.loads(json.dumps(PLAIN[name])) if name in PLAIN else inline(schemas[name], name)

    template = expand("io.k8s.api.core.v1.PodTemplateSpec")
    # A pod template is named by its Deployment; only what a user can set of its metadata stays.
    text = {"type": "object", "additionalProperties": {"type": "string"}}
    template["properties"]["metadata"] = {"type": "object", "properties": {"annotations": text, "labels": text}}
    template["required"] = ["spec"]
    json.dump(template, sys.stdout, sort_keys=True, separators=(",", ":"))
    print()


main()
