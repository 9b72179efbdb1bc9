"""`python -m firsttouch.pool SCRIPT ARGS...`: what `firsttouch run` does, for a program started by another."""

import sys

from firsttouch.errors import FirsttouchError
from firsttouch.pool import launch

try:
    launch.execute(sys.argv[1:], launch.environment())
except FirsttouchError as error:
    print(f"firsttouch pool: {error.message}\n  Try: {error.hint}", file=sys.stderr)
    sys.exit(error.exit_code)
