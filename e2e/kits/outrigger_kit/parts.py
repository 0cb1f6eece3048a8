"""The command line of a kit: `all`, or PART... [FILTER...]."""

import time


def run(known, words):
    """Runs parts, modules by name whose `main` takes the filters and says whether it failed. The exit code of the kit."""
    parts = list(known) if words == ["all"] else [w for w in words if w in known]
    only = [] if words == ["all"] else [w for w in words if w not in known]
    failed = []
    for part in parts:
        begin = time.monotonic()
        print(f"== {part}", flush=True)
        if known[part].main(only):
            failed.append(part)
        print(f"== {part}: {'FAILED' if part in failed else 'ok'} after {time.monotonic() - begin:.1f} s", flush=True)
    return 1 if failed or not parts else 0
