"""The command line. One file per command; heavy imports stand inside the commands."""

import sys

from mmspec.registry import switches


def main() -> None:
    """Run `mmspec`; a user's mistake is one line and exit code 2, with a traceback under `MMSPEC_TRACE=1`."""
    from mmspec.cli.app import build

    try:
        build()()
    except (ValueError, TypeError) as error:
        if switches.tracing():
            raise
        print(f"mmspec: {error}", file=sys.stderr)
        sys.exit(2)
