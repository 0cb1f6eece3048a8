"""python -m kit PART...: the parts of the kit, in the network namespace that `run` makes."""

import importlib
import sys

PARTS = {"acts": "suite"}

if __name__ == "__main__":
    part, *rest = sys.argv[1:]
    sys.exit(importlib.import_module(f"kit.{PARTS[part]}").main(rest))
