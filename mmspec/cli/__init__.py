"""The command line. One file per command; heavy imports stand inside the commands."""

import sys


def main() -> None:
    """Run `mmspec`; a mistake is one line and exit code 2, with a traceback under `MMSPEC_TRACE=1`."""
    from mmspec.cli.app import build
    from mmspec.cli.boundary import run

    sys.exit(run(lambda: build()(standalone_mode=False)))
