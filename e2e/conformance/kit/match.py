"""The expectations of ACTS: an object of matchers, or a structure to find in the value."""

import re

ABSENT = object()
TYPES = {
    "string": lambda v: isinstance(v, str),
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
}


def every(want, got, path):
    return [p for w in want for p in problems(w, got, path)]


def either(want, got, path):
    tries = [problems(w, got, path) for w in want]
    return [] if any(not t for t in tries) else [f"{path}: none of {len(want)} alternatives holds: {tries}"]


def test(holds, says):
    """A matcher from a predicate over (expected, value)."""
    return lambda want, got, path: [] if holds(want, got) else [f"{path}: {says} {want!r}, got {show(got)}"]


def items(want, got, path):
    if not isinstance(got, list):
        return [f"{path}: not a list: {show(got)}"]
    if isinstance(want, dict):
        return [p for i, value in enumerate(got) for p in problems(want, value, f"{path}[{i}]")]
    return [p for i, w in enumerate(want) for p in problems(w, got[i] if i < len(got) else ABSENT, f"{path}[{i}]")]


MATCHERS = {
    "type": test(lambda w, g: g is not ABSENT and TYPES[w](g), "want type"),
    "exists": test(lambda w, g: (g is not ABSENT and g is not None) == w, "want exists"),
    "absent": test(lambda w, g: (g is ABSENT) == w, "want absent"),
    "one_of": test(lambda w, g: g in w, "want one of"),
    "matches": test(lambda w, g: isinstance(g, str) and re.search(w, g) is not None, "want a match of"),
    "contains": test(lambda w, g: isinstance(g, (str, list)) and w in g, "want something that contains"),
    "starts_with": test(lambda w, g: isinstance(g, str) and g.startswith(w), "want a start with"),
    "count": test(lambda w, g: isinstance(g, list) and len(g) == w, "want length"),
    "count_gte": test(lambda w, g: isinstance(g, list) and len(g) >= w, "want a length of at least"),
    "count_lte": test(lambda w, g: isinstance(g, list) and len(g) <= w, "want a length of at most"),
    "any_of": either,
    "all_of": every,
    "items": items,
}


def show(value):
    text = "nothing" if value is ABSENT else repr(value)
    return text if len(text) < 300 else text[:300] + "..."


def problems(want, got, path="$"):
    """What keeps `got` from being as wanted: one line each."""
    if isinstance(want, dict):
        if want and all(key in MATCHERS for key in want):
            return [p for key, value in want.items() for p in MATCHERS[key](value, got, path)]
        if not isinstance(got, dict):
            return [f"{path}: want an object, got {show(got)}"]
        return [p for key, value in want.items() for p in problems(value, got.get(key, ABSENT), f"{path}.{key}")]
    if isinstance(want, list):
        return items(want, got, path)
    return [] if want == got else [f"{path}: want {want!r}, got {show(got)}"]


def find(value, path):
    """All values at a path such as `task.artifacts[*].parts[0]`."""
    found = [value]
    for name, index in re.findall(r"([^.\[\]]+)|\[(\*|\d+)\]", path):
        following = []
        for item in found:
            if name and isinstance(item, dict) and name in item:
                following.append(item[name])
            elif index == "*" and isinstance(item, list):
                following += item
            elif index.isdigit() and isinstance(item, list) and int(index) < len(item):
                following.append(item[int(index)])
        found = following
    return found
