"""python -m kit all | PART... [FILTER...]: parts of the kit, in the network namespace that `run` makes."""

import sys

from outrigger_kit import parts

from . import matrix, selfcheck, suite

PARTS = {"self": selfcheck, "suite": suite, "matrix": matrix}


if __name__ == "__main__":
    sys.exit(parts.run(PARTS, sys.argv[1:]))
