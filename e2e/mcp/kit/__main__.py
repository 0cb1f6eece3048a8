"""python -m kit all | PART... [FILTER...]: parts of the kit, in the network namespace that `run` makes."""

import sys
import time

from . import matrix, selfcheck, suite

PARTS = {"self": selfcheck, "suite": suite, "matrix": matrix}


def main(words):
    parts = list(PARTS) if words == ["all"] else [w for w in words if w in PARTS]
    only = [] if words == ["all"] else [w for w in words if w not in PARTS]
    failed = []
    for part in parts:
        begin = time.monotonic()
        print(f"== {part}", flush=True)
        if PARTS[part].main(only):
            failed.append(part)
        print(f"== {part}: {'FAILED' if part in failed else 'ok'} after {time.monotonic() - begin:.1f} s", flush=True)
    return 1 if failed or not parts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
