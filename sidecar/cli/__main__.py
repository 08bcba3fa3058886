"""`python -m sidecar.cli` is the command `sidecar`."""

import sys

from sidecar.cli.main import main

sys.exit(main())
