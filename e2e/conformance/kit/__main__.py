"""python -m kit all | PART... | PART FILTER...: parts of the kit, in the network namespace that `run` makes."""

import sys

from outrigger_kit import parts

from . import card, docs, faults, matrix, selfcheck, suite, transparency

PARTS = {"self": selfcheck, "acts": suite, "matrix": matrix, "faults": faults, "transparency": transparency, "card": card, "docs": docs}


if __name__ == "__main__":
    sys.exit(parts.run(PARTS, sys.argv[1:]))
