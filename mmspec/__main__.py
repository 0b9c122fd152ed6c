"""`python -m mmspec` is `mmspec`."""

from mmspec.cli import main

main()
