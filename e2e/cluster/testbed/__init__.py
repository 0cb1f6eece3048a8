"""The project's test bed: a real Kubernetes on one machine, from Go modules, without Docker or systemd."""

import sys

if sys.version_info < (3, 11):
    sys.exit(f"the test bed needs Python 3.11 or newer; this is {sys.version.split()[0]} at {sys.executable}")
