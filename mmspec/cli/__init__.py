"""The command line: one file per command; heavy imports are inside the commands."""

import sys


def main() -> None:
    """Run `mmspec`; an error is one line on stderr and exit code 2, or a traceback under `MMSPEC_TRACE=1`."""
    from mmspec.cli.app import build
    from mmspec.cli.boundary import run

    sys.exit(run(lambda: build()(standalone_mode=False)))
