"""The distributions here are not installed: their own tests run where `test_backoff_wheel.py` installs them."""

collect_ignore_glob = ["mmspec-*"]
