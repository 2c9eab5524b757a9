"""`python -m rushlight` is the command `rushlight`."""

import sys

from rushlight_cli import main

sys.exit(main())
